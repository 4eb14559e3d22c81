"""EAGLE's layer over the entries of one text.

Entry j joins the feature of token j and the embedding of token j + 1. The first `length` entries hold the target's own
features. Drafted entries, a chain or a tree, follow them and are dropped when the text continues: an accepted token's
entry is read again with the target's own feature.

Shapes: L new entries, D width, F numbers of a target's feature, V logits.
"""

from collections.abc import Sequence

from torch import Tensor

from specbench.engine.beside.declared import EntrySession, Prediction, TextEntries
from specbench.methods.eagle.network import Eagle


class EagleEntries(TextEntries):
    """Entries of one text. `length` counts the ones that hold the target's features."""

    def __init__(self, eagle: Eagle, session: EntrySession) -> None:
        self.eagle, self.session = eagle, session

    def read(self, features_LF: Tensor, tokens: Sequence[int]) -> Prediction:
        """Read entries of the target's own features and these tokens; what follows the last."""
        self.forget()
        most = self.session.at_once(len(tokens))
        for first in range(0, len(tokens), most):
            part = tokens[first : first + most]
            predicted = self._predict("read", features_LF[first : first + most], part)
            self.session.length += len(part)
        return predicted

    def draft(self, states_1D: Tensor, token: int) -> Prediction:
        """Continue from a predicted feature and the token drafted from it."""
        return self.draft_nodes(states_1D, [token], [self.session.nodes - 1])

    def draft_nodes(self, states_LD: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> Prediction:
        """Continue with nodes of a tree, numbered on; `states_LD` are predicted at their parents."""
        self.session.grow(tokens, parents)
        return self._predict("draft", states_LD, tokens)

    def forget(self) -> None:
        """Drop all drafted entries."""
        self.session.forget()

    def _predict(self, step: str, states: Tensor, tokens: Sequence[int]) -> Prediction:
        found, rows = self.session.run(step, tokens, states), self.eagle.vocabulary_size
        return Prediction(found[:, rows:], found[:, :rows])
