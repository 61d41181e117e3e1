"""Generates text in this process, without a server: python examples/offline.py"""

from taco_llm import LLM, SamplingParams


def main() -> None:
    questions = ["What does os.path.join do?", "What does json.dumps do?"]
    conversations = [[{"role": "user", "content": question}] for question in questions]
    with LLM(model="demo") as llm:
        params = SamplingParams(temperature=0, max_tokens=64)
        outputs = llm.chat(conversations, params, use_tqdm=False)
    for question, output in zip(questions, outputs, strict=True):
        print(f"{question}\n  {output.outputs[0].text}")


if __name__ == "__main__":
    main()
