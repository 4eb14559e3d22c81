"""Any server with an OpenAI-compatible API, measured from outside: `measure_server.measure` is the whole of it.

`client` sends a request and reads the answer, `dialect` knows what engines add to the API, `asked` makes requests of a
task's prompts, `when_sent` orders them, `verdict` tests the completions, `server_summary` makes the numbers.
"""
