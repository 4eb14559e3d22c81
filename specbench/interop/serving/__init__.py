"""Other engines that serve the same models: what to set in them (`settings`), and what their parts cost.

`settings` holds plain values only. An `Engine` (`engine`) is timed from outside by three functions;
`assisted` is `transformers`' assisted generation, `openai` any server with an OpenAI-compatible API.
"""
