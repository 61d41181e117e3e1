from dataclasses import replace

import pytest

from support.gateway_app import MODEL, AppMaker
from support.scripted_engine import MODEL_INFO, prompt_of, replay
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import ConfigurationError

NOT_READY = replace(MODEL_INFO, ready=False)
USER = {"role": "user", "content": "x"}


async def test_models(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    listing = (await app.http.get("/v1/models")).json()
    assert listing["object"] == "list"
    assert [card["id"] for card in listing["data"]] == [MODEL, "alias"]
    card = (await app.http.get(f"/v1/models/{MODEL}")).json()
    assert card == listing["data"][0]
    assert (card["object"], card["max_model_len"]) == ("model", 512)
    assert isinstance(card["created"], int)
    assert card["owned_by"]
    missing = await app.http.get("/v1/models/no/such/model")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("info", [None, NOT_READY])
async def test_without_a_worker_requests_are_refused_for_now(
    make_app: AppMaker, info: None
) -> None:
    app = make_app(replay([50]), info=info)
    for method, path, body in (
        ("GET", "/health", None),
        ("GET", "/ping", None),
        ("POST", "/v1/completions", {"prompt": "x"}),
        ("POST", "/v1/chat/completions", {"messages": [USER]}),
        ("POST", "/v1/chat/completions", {"messages": [USER], "stream": True}),
    ):
        response = await app.http.request(method, path, json=body)
        assert response.status_code == 503, path
        assert response.json()["error"]["type"] == "service_unavailable_error"
        assert int(response.headers["retry-after"]) > 0
    for path in ("/version", "/metrics", "/v1/models"):
        assert (await app.http.get(path)).status_code == 200
    app.engine.info = MODEL_INFO
    assert (await app.http.get("/health")).status_code == 200
    assert (await app.http.post("/v1/completions", json={"prompt": "x"})).status_code == 200


async def test_a_draining_gateway_takes_nothing_new(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    app.gateway.draining = True
    assert (await app.http.get("/health")).status_code == 503
    response = await app.http.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 503
    assert "retry-after" in response.headers


async def test_ping_answers_post(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    assert (await app.http.post("/ping")).status_code == 200


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/ping", "GET, HEAD, POST"),
        ("/health", "GET, HEAD"),
        ("/v1/completions", "POST"),
        (f"/v1/models/{MODEL}", "GET, HEAD"),
        ("/llm/ping", "GET, HEAD, POST"),
    ],
)
@pytest.mark.parametrize("method", ["OPTIONS", "PATCH"])
async def test_a_405_names_every_method_of_the_path(
    make_app: AppMaker, method: str, path: str, allowed: str
) -> None:
    app = make_app(replay([50]), root_path="/llm")
    response = await app.http.request(method, path)
    assert response.status_code == 405
    assert response.headers.get_list("allow") == [allowed]
    assert response.json()["error"]["message"] == "This route does not accept that method."


async def test_version(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    assert set((await app.http.get("/version")).json()) == {"version"}


async def test_metrics_hold_both_parts(make_app: AppMaker) -> None:
    app = make_app(replay([50, 51, 52]))
    app.engine.prometheus = (
        b"# HELP vllm:num_requests_running R.\n# TYPE vllm:num_requests_running gauge\n"
        b'vllm:num_requests_running{model_name="org/scripted"} 4.0\n'
    )
    await app.http.post("/v1/completions", json={"prompt": "x"})
    response = await app.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'vllm:num_requests_running{model_name="org/scripted"} 4.0' in response.text
    assert 'vllm:time_to_first_token_seconds_count{model_name="org/scripted"} 1.0' in response.text
    assert 'vllm:inter_token_latency_seconds_count{model_name="org/scripted"} 2.0' in response.text
    assert (
        'vllm:request_success_total{finished_reason="length",model_name="org/scripted"} 1.0'
        in response.text
    )


async def test_tokenize_and_back(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(replay([50]))
    found = (
        await app.http.post(
            "/tokenize", json={"prompt": "The fox", "messages": None, "return_token_strs": True}
        )
    ).json()
    assert found["tokens"] == tokenizer.encode("The fox")
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == 512
    assert "".join(found["token_strs"]) == "The fox"
    back = await app.http.post("/detokenize", json={"tokens": found["tokens"]})
    assert back.json() == {"prompt": "The fox"}


async def test_tokenize_a_conversation(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(replay([50]))
    found = (await app.http.post("/tokenize", json={"messages": [USER], "prompt": None})).json()
    text = tokenizer.decode(found["tokens"], skip_special_tokens=False)
    assert text == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": ["x"]}),
        ("/tokenize", {"messages": []}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [2**40]}),
        ("/detokenize", {"tokens": ["x"]}),
        ("/tokenize", {"prompt": "x", "messages": [USER]}),
        ("/detokenize", {"tokens": [5, MODEL_INFO.vocab_size]}),
    ],
)
async def test_bad_tokenize_requests(
    make_app: AppMaker, path: str, body: dict[str, object]
) -> None:
    app = make_app(replay([50]))
    assert (await app.http.post(path, json=body)).status_code == 400
    assert (await app.http.post(path, json={**body, "model": "other"})).status_code in (400, 404)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("trace-1", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("with space", False),
        ("new\tline", False),
        ("", False),
    ],
)
async def test_request_ids(make_app: AppMaker, given: str, kept: bool) -> None:
    app = make_app(replay([50]))
    headers = {"x-request-id": given}
    response = await app.http.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    answered = response.headers["x-request-id"]
    assert (answered == given) == kept
    assert response.json()["id"] == f"cmpl-{answered}"
    assert app.engine.requests[0].request_id == f"cmpl-{answered}"


async def test_cors(make_app: AppMaker) -> None:
    app = make_app(replay([50]), allowed_origins=("https://ui.example",), api_keys=("k",))
    preflight = {
        "origin": "https://ui.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    response = await app.http.options("/v1/completions", headers=preflight)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://ui.example"
    other = await app.http.options(
        "/v1/completions", headers={**preflight, "origin": "https://evil.example"}
    )
    assert "access-control-allow-origin" not in other.headers
    denied = await app.http.get("/v1/models", headers={"origin": "https://ui.example"})
    assert denied.status_code == 401
    assert denied.headers["access-control-allow-origin"] == "https://ui.example"


async def test_a_root_path_is_optional_for_clients(make_app: AppMaker) -> None:
    app = make_app(replay([50]), root_path="/llm")
    for path in ("/v1/models", "/llm/v1/models"):
        assert (await app.http.get(path)).status_code == 200


async def test_middleware_of_the_operator(make_app: AppMaker) -> None:
    app = make_app(
        replay([50]), middleware=("support.asgi.AddHeader", "support.asgi.add_other_header")
    )
    headers = (await app.http.get("/version")).headers
    assert (headers["x-class"], headers["x-function"]) == ("yes", "yes")


@pytest.mark.parametrize("path", ["nothing", "no.such.module", "json.nothing", "sys.path"])
def test_middleware_of_the_wrong_kind(make_app: AppMaker, path: str) -> None:
    with pytest.raises(ConfigurationError, match="--middleware"):
        make_app(replay([50]), middleware=(path,))


@pytest.mark.parametrize(
    ("prompt", "shown"), [("The quick fox", "'The q'"), ([40, 41, 42, 43, 44, 45], "[40, 41, 42")]
)
async def test_requests_are_logged_in_one_line(
    make_app: AppMaker, caplog: pytest.LogCaptureFixture, prompt: object, shown: str
) -> None:
    app = make_app(replay([50]), log_requests=True, max_log_len=5)
    with caplog.at_level("INFO", "taco.gateway"):
        answer = await app.http.post("/v1/completions", json={"prompt": prompt})
    (line,) = [message for message in caplog.messages if "Request" in message]
    request_id = answer.json()["id"]
    assert request_id in line
    assert shown in line
    shown_alone = line.replace(request_id, "")  # whose random digits may well hold a 45
    assert "quick" not in shown_alone
    assert "45" not in shown_alone
    assert "\n" not in line


async def test_no_model_is_listed_before_a_worker_attaches(make_app: AppMaker) -> None:
    for info in (None, replace(MODEL_INFO, ready=False, max_model_len=0)):
        app = make_app(replay([50]), info=info)
        listing = await app.http.get("/v1/models")
        assert listing.json() == {"object": "list", "data": []}
        assert (await app.http.get(f"/v1/models/{MODEL}")).status_code == 503
        assert (await app.http.get("/v1/models/other")).status_code == 503  # perhaps an adapter
        app.engine.info = replace(MODEL_INFO, ready=False)  # its worker has gone
        assert [card["id"] for card in (await app.http.get("/v1/models")).json()["data"]]


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/health", "/metrics"])
async def test_head_is_get_without_a_body(make_app: AppMaker, path: str) -> None:
    app = make_app(replay([50]))
    whole, head = await app.http.get(path), await app.http.head(path)
    assert head.status_code == whole.status_code == 200
    assert head.content == b""
    assert "x-request-id" in head.headers
    assert head.headers.get("content-type") == whole.headers.get("content-type")


async def test_head_on_a_route_that_has_no_get(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    assert (await app.http.head("/v1/completions")).status_code == 405
    assert (await app.http.head("/nothing")).status_code == 404


async def test_detokenize_names_the_token_outside_the_vocabulary(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    body = {"tokens": [5, MODEL_INFO.vocab_size + 7]}
    error = (await app.http.post("/detokenize", json=body)).json()["error"]
    assert error["param"] == "tokens"
    assert error["message"] == "tokens has token id 1007, which is not in 0…999."
    app.engine.info = None  # without a worker, the vocabulary is not known
    assert (await app.http.post("/detokenize", json=body)).status_code == 200
    assert (await app.http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_tokenize_takes_a_prompt_or_messages(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    response = await app.http.post("/tokenize", json={"prompt": "", "messages": [USER]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


async def test_tokenize_gives_the_template_what_chat_gives_it(make_app: AppMaker) -> None:
    template = "{{ reasoning_effort }} {{ verbosity }} {{ messages[0].content }}"
    app = make_app(replay([50]), chat_template=template)
    body = {"messages": [USER], "reasoning_effort": "low", "verbosity": "high"}
    found = (await app.http.post("/tokenize", json=body)).json()
    await app.http.post("/v1/chat/completions", json=body)
    assert found["tokens"] == prompt_of(app.engine.requests[0])
    plain = await app.http.post("/tokenize", json={"messages": [USER]})
    assert plain.json()["tokens"] != found["tokens"]


async def test_tokenize_rejects_a_verbosity_that_the_template_does_not_read(
    make_app: AppMaker,
) -> None:
    app = make_app(replay([50]))
    body = {"messages": [USER], "verbosity": "low"}
    response = await app.http.post("/tokenize", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "verbosity"


async def test_tokenize_fills_the_template(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    template = "{{ mood }}{% for m in messages %}{{ m.content }}{% endfor %}"
    app = make_app(replay([50]), chat_template=template)
    body = {"messages": [USER], "chat_template_kwargs": {"mood": "calm "}}
    found = (await app.http.post("/tokenize", json=body)).json()
    assert tokenizer.decode(found["tokens"]).startswith("calm ")
    body["chat_template_kwargs"] = {"other": 1}
    refused = await app.http.post("/tokenize", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("fields", "ends_with"),
    [
        ({}, "<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, "<|im_end|>\n"),
        ({"add_generation_prompt": False, "continue_final_message": True}, "Sure"),
        ({"add_generation_prompt": None, "continue_final_message": True}, "Sure"),
    ],
)
async def test_tokenize_ends_as_asked(
    make_app: AppMaker, tokenizer: Tokenizer, fields: dict[str, bool], ends_with: str
) -> None:
    app = make_app(replay([50]))
    messages = [USER, {"role": "assistant", "content": "Sure"}]
    found = (await app.http.post("/tokenize", json={"messages": messages, **fields})).json()
    assert tokenizer.decode(found["tokens"], skip_special_tokens=False).endswith(ends_with)


async def test_tokenize_adds_special_tokens_as_asked(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    for prompt in ({"prompt": "The"}, {"messages": [USER]}):
        without = await app.http.post("/tokenize", json=prompt | {"add_special_tokens": False})
        asked = await app.http.post("/tokenize", json=prompt | {"add_special_tokens": True})
        assert without.status_code == asked.status_code == 200
        assert asked.json()["tokens"][-without.json()["count"] :] == without.json()["tokens"]


@pytest.mark.parametrize("name", ["chat_template", "mm_processor_kwargs"])
async def test_tokenize_rejects_unsupported_fields(make_app: AppMaker, name: str) -> None:
    app = make_app(replay([50]))
    response = await app.http.post("/tokenize", json={"messages": [USER], name: ["x"]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
