"""A server with an OpenAI-compatible API as an engine: only what can be timed through HTTP.

A server drafts as it was started, so there are two: without a draft, and with one at a fixed gamma. The time of a step,
or a pass, is the time of a longer completion beyond one of a single token, which holds the request, the prefill and the
first token. Passes are counted by the server at `/metrics`. The shares of drafting and verification in a pass do not
show from outside: only their sum is measured.
"""

import statistics
from collections.abc import Callable

from specbench.engine.session import Prompt
from specbench.errors import MachineError, UserError
from specbench.interop.serving.completions import Completion, Completions, Counts
from specbench.interop.serving.engine import Generated
from specbench.records.timed_rounds import Timed
from specbench.sampling import Sampling

# Timed repeats of each completion, of which the median is used; an untimed one comes first, since servers cache
# prefixes.
REPEATS = 3


class OpenAIServer:
    """A target's server, and one of the same target with a draft.

    Args:
        plain: the server without a draft.
        drafting: the server with one; None if there is none to time.
        gamma: tokens that `drafting` drafts a pass, as it was started.
        max_new_tokens: of a whole text.
    """

    def __init__(
        self, plain: Completions, drafting: Completions | None, gamma: int, sampling: Sampling, max_new_tokens: int
    ) -> None:
        """An engine of two servers of one target, without and with a draft.

        Raises UserError if the sampling has a top-k or min-p, which the API does not support.
        """
        if sampling.top_k is not None:
            raise UserError(f"top_k={sampling.top_k}: the API for completions has no top-k; leave it out")
        if sampling.min_p is not None:
            raise UserError(f"min_p={sampling.min_p}: the API for completions has no min-p; leave it out")
        self.name = f"openai {plain.model}"
        self.plain, self.drafting, self.gamma = plain, drafting, gamma
        self.sampling, self.max_new_tokens = sampling, max_new_tokens
        self.must_be_equal = sampling.temperature == 0  # rounding cannot be told from a lossy draft from outside
        self._compared = False  # gamma with what the server counts

    def time_steps(self, begun: Prompt, tokens: int) -> list[float]:
        """Seconds of each step without a draft; the steps after the first have the same time, which is their mean."""
        first, rest, more = self._beyond_first(self.plain, begun, tokens)
        return [first] + ([rest / more] * more if more else [])

    def time_verifications(self, begun: Prompt, gamma: int, tokens: int) -> list[Timed]:
        """The parts of each pass, all of it in `verify_s`, which includes drafting and the rest.

        The first pass has drafted nothing; all others have the same time, and their drafted and accepted tokens add up
        to the counts.

        Raises:
            UserError: the server counts no passes.
            MachineError: it counted other requests' passes.
        """
        server = self._server(gamma)
        if (before := server.counts()) is None:
            raise UserError(
                f"{server.name}: its /metrics count no passes, so that a pass cannot be timed; a token can: "
                "seconds_per_token()"
            )
        if tokens < 2:
            return [Timed(0, 0, 0, True, 0.0, self._completed(server, begun, tokens).seconds, 0.0)]
        counted = list[Counts]()

        def count(one: Completion) -> None:
            nonlocal before
            after = server.counts()
            if before is None or after is None:
                raise MachineError(f"{server.name}: its /metrics no longer count passes; is it the same server?")
            seen, before = after.since(before), after
            if seen.passes + seen.accepted > one.tokens + gamma:
                raise MachineError(
                    f"{server.name}: counted {seen.passes + seen.accepted} tokens of passes for a text of "
                    f"{one.tokens}; the server also works for others: time it when nobody else asks"
                )
            counted.append(seen)

        first, rest, more = self._beyond_first(server, begun, tokens, count)
        # For a completion of one token, some servers count a pass, and some take it from the prefill.
        seen = counted[-1].since(counted[0])
        if more and not seen.passes:
            raise UserError(f"{server.name}: {more} tokens without a pass; start the server with a draft")
        if more:
            self._require_gamma(counted[-1])
        found = [Timed(0, 0, 0, True, 0.0, first, 0.0)]
        for number in range(seen.passes if more else 0):
            drafted, accepted = (_share(all_of, seen.passes, number) for all_of in (seen.drafted, seen.accepted))
            found.append(Timed(gamma, drafted, accepted, False, 0.0, rest / seen.passes, 0.0))
        return found

    def seconds_per_token(self, begun: Prompt, gamma: int | None, tokens: int) -> float:
        """Seconds of a token after the first, with the server's draft or without (None).

        Raises UserError if the completion ends with its first token.
        """
        server = self._server(gamma)
        _, rest, more = self._beyond_first(server, begun, tokens)
        if not more:
            raise UserError(f"{server.name}: the text ends with its first token; give another prompt")
        return rest / more

    def generate(self, prompt: Prompt, gamma: int | None, seed: int) -> Generated:
        server = self._server(gamma)
        before = server.counts() if gamma is not None and not self._compared else None
        found = self._completed(server, prompt, self.max_new_tokens, seed)
        if before is not None and (after := server.counts()) is not None:
            self._require_gamma(after.since(before))
        return Generated(found.tokens, found.seconds, found.text)

    def _require_gamma(self, seen: Counts) -> None:
        """Compare gamma with the drafted tokens of a completion.

        Near `max_tokens` passes may draft fewer tokens, at least one fewer each: gamma (gamma + 1) / 2 in all. Raises
        UserError if the server drafts another number.
        """
        assert self.drafting is not None
        most, mean = seen.passes * self.gamma, seen.drafted / max(1, seen.passes)
        if not most - self.gamma * (self.gamma + 1) // 2 <= seen.drafted <= most:
            raise UserError(
                f"{self.drafting.name}: drafts {mean:.3g} tokens per pass by its /metrics, and "
                f"gamma={self.gamma} was given; give the number that it was started with, and let it draft as many "
                "in every pass"
            )
        self._compared = self._compared or seen.passes > self.gamma + 1

    def _server(self, gamma: int | None) -> Completions:
        """The server that drafts so many tokens."""
        if gamma is None:
            return self.plain
        if self.drafting is None:
            raise UserError("draft_url: give the address of a server with a draft")
        if gamma != self.gamma:
            raise UserError(f"{self.drafting.name}: drafts gamma={self.gamma} tokens per pass and not {gamma}")
        return self.drafting

    def _completed(self, server: Completions, prompt: Prompt, tokens: int, seed: int = 0) -> Completion:
        if prompt.source:
            raise UserError(f"{server.name}: the API for completions has no encoder; give a decoder-only target")
        return server.complete(prompt.prefix, tokens, self.sampling, seed)

    def _beyond_first(
        self,
        server: Completions,
        begun: Prompt,
        tokens: int,
        each: Callable[[Completion], None] = lambda one: None,
    ) -> tuple[float, float, int]:
        """Seconds of the first token, seconds of the tokens after it, and how many these are.

        `each` receives the completions of one token, and then the longer.
        """

        def middle(most: int) -> Completion:
            found = list[Completion]()
            for _ in range(REPEATS):
                found.append(self._completed(server, begun, most))
                each(found[-1])
            seconds = statistics.median(one.seconds for one in found)
            return next(one for one in found if one.seconds == seconds)

        each(self._completed(server, begun, 1))
        first = middle(1)
        whole = middle(tokens) if tokens > 1 else first
        more, rest = max(0, whole.tokens - 1), whole.seconds - first.seconds
        if more and rest <= 0:
            raise MachineError(
                f"{server.name}: {whole.tokens} tokens took no longer than one; time more tokens, or a server at rest"
            )
        return first.seconds, rest, more


def _share(total: int, parts: int, number: int) -> int:
    """Part `number` of `total`, split into `parts` whole numbers as even as can be."""
    return total * (number + 1) // parts - total * number // parts
