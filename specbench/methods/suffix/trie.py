"""A trie of the runs of tokens in texts, with how often each occurs; it grows and shrinks token by token.

A run that occurs once has no nodes after it: its node holds the place of what followed. A node gets followers when
its run occurs again, so that memory and time a token grow with what repeats, and not with the depth of the trie.
"""

from collections.abc import Iterator, Sequence

END = -1  # after each text, and no token


class Node:
    """A run of tokens: how often it occurs, and the place of the token after its first occurrence.

    `followers` are the runs that are longer by a token; None for a run that occurs once, and for the longest runs.
    `likeliest` is the answer of `SuffixTrie.likeliest` until one of `followers` changes.
    """

    __slots__ = ("count", "followers", "likeliest", "place")

    def __init__(self, place: int) -> None:
        self.count, self.place = 1, place
        self.followers: dict[int, Node] | None = None
        self.likeliest: tuple[int, float, Node] | None = None


class SuffixTrie:
    """All runs of up to `depth` tokens of texts, the last of which may be unfinished."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._tokens: list[int] = []
        self._root = Node(0)
        self._root.followers = {}
        self._ending: list[Node] = []  # the unfinished text's last 1, 2, ... tokens, of those runs that occurred before
        self._endings: list[list[Node]] = []  # the same before each of its tokens

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    @property
    def ending(self) -> Sequence[Node]:
        """The last 1, 2, ... tokens of the unfinished text, as far as they occurred before, shorter than `depth`."""
        return self._ending

    def append(self, token: int) -> None:
        """Add a token to the unfinished text."""
        self._tokens.append(token)
        self._endings.append(self._ending)
        again = list[Node]()
        for node in (self._root, *self._ending):
            assert node.followers is not None
            node.likeliest = None
            child = node.followers.get(token)
            if child is None:
                node.followers[token] = Node(len(self._tokens))
            else:
                child.count += 1
                again.append(child)
        self._ending = again[: self.depth - 1]
        for child in self._ending:
            if child.followers is None:
                first = self._tokens[child.place]
                child.followers, child.likeliest = {} if first == END else {first: Node(child.place + 1)}, None

    def remove_last(self) -> None:
        """Remove the last token of the unfinished text."""
        token, self._ending = self._tokens.pop(), self._endings.pop()
        for node in (self._root, *self._ending):
            assert node.followers is not None
            node.likeliest = None
            child = node.followers[token]
            child.count -= 1
            if child.count == 0:
                del node.followers[token]
            elif child.count == 1:
                child.followers = None

    def finish(self) -> None:
        """Finish the text: no run goes on from it to the next."""
        self._tokens.append(END)
        self._ending, self._endings = [], []

    def find(self, context: Sequence[int]) -> Iterator[Node]:
        """The last 1, 2, ... tokens of `context`, as far as they occur."""
        for first in range(len(context) - 1, -1, -1):
            run = self._root
            for token in context[first:]:
                if (longer := self.after(run, token)) is None:
                    return
                run = longer
            yield run

    def likeliest(self, node: Node) -> tuple[int, float, Node] | None:
        """The token that followed most often, its share of all followers, and the longer run; None without followers.

        Of equally frequent tokens the newest.
        """
        if node.followers is None:
            return next(((token, 1.0, child) for token, child in self._followers(node).items()), None)
        if node.likeliest is None and node.followers:
            total = sum(child.count for child in node.followers.values())
            token, child = max(reversed(node.followers.items()), key=lambda pair: pair[1].count)
            node.likeliest = token, child.count / total, child
        return node.likeliest

    def ranked(self, node: Node) -> list[tuple[int, float, Node]]:
        """The tokens that followed, their shares and the longer runs, the most frequent first."""
        followers = self._followers(node)
        total = sum(child.count for child in followers.values())
        found = [(token, child.count / total, child) for token, child in reversed(followers.items())]
        return sorted(found, key=lambda one: -one[1])

    def after(self, node: Node, token: int) -> Node | None:
        """The run that is longer by `token`; None if that did not follow."""
        return self._followers(node).get(token)

    def _followers(self, node: Node) -> dict[int, Node]:
        if node.followers is not None:
            return node.followers
        if node.count > 1 or node.place >= len(self._tokens) or self._tokens[node.place] == END:
            return {}
        return {self._tokens[node.place]: Node(node.place + 1)}
