"""Real engines, started here: their server without a draft and with one, with the settings that `--for` prints.

`process` starts a command and ends it whatever happens to us; `startable` says how each engine is found and called,
and makes the files that two of them read; `two_servers` starts the two servers of a target, `measure_started` measures
them; `guard` ends an engine whose starter was killed.
"""
