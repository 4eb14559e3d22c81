"""Real engines, started here: their server without a draft and with one, with the settings that `--for` prints.

`process` starts a command and ends it whatever happens to us; `engines` says how each engine is found and called;
`servers` starts the two servers of a target; `gguf` and `openvino` make the files that two of the engines read.
"""
