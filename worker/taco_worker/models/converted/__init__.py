"""The files that `taco_llm convert` writes."""
