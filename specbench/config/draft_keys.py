"""A draft as a user writes it, before its kind is known: one class with the keys of all kinds.

From it comes the config of the one kind, with the keys of that kind.
"""

from collections.abc import Collection, Iterator
from dataclasses import MISSING, Field, field, fields, make_dataclass
from typing import Any

from specbench.config.draft import DraftConfig
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.keys import HELP, require
from specbench.config.model import ModelConfig
from specbench.errors import UserError


def _own_keys() -> Iterator[tuple[str, Any, Any]]:
    """The keys of all kinds that not every draft has, each once: name, type and dataclass field.

    A key that means something else in another kind, with another default, is null here: each kind then has its own.
    """
    found: dict[str, Field[Any]] = {}
    said: dict[str, dict[str, list[str]]] = {}  # by key: what is said of it, and of which kinds
    for name, kind in DRAFT_KINDS.items():
        for one in fields(kind):
            before = found.setdefault(one.name, one)
            said.setdefault(one.name, {}).setdefault(one.metadata.get(HELP, ""), []).append(name)
            another = _default(before) is not None and _default(before) != _default(one)
            assert not another, f"{kind.__name__}.{one.name}: another kind has another default"
    for name, one in found.items():
        if name in {shared.name for shared in fields(DraftConfig)}:
            continue
        about = one.metadata.get(HELP, "")
        if name not in {shared.name for shared in fields(ModelConfig)}:
            about = "; ".join(f"{', '.join(kinds)}: {text}" for text, kinds in said[name].items())
        nested = any(name in kind().parts() for kind in DRAFT_KINDS.values())
        yield name, "DraftKeys | None" if nested else one.type, _again(one, about)


def _again(one: Field[Any], about: str) -> Any:
    metadata = {**one.metadata, HELP: about}
    if one.default_factory is not MISSING:
        return field(default_factory=one.default_factory, metadata=metadata)
    return field(default=one.default, metadata=metadata)


def _default(one: Field[Any]) -> object:
    """The default of a key; None for what each kind has of its own."""
    if one.name == "kind":
        return None
    return one.default_factory() if one.default_factory is not MISSING else one.default


def keys_of_kind(kind: str) -> set[str]:
    """The keys of one kind of draft; empty if there is no such kind."""
    return {one.name for one in fields(DRAFT_KINDS[kind])} if kind in DRAFT_KINDS else set()


def kinds_with(name: str) -> list[str]:
    """The kinds of draft that have the key `name`."""
    return [kind for kind in DRAFT_KINDS if name in keys_of_kind(kind)]


DraftKeys: type[DraftConfig] = make_dataclass(
    "DraftKeys",
    list(_own_keys()),
    bases=(DraftConfig,),
    namespace={"__module__": __name__, "__doc__": "The keys of every kind of draft, each at its default."},
)


def of_kind(
    keys: DraftConfig, key: str = "draft", given: Collection[str] = (), spared: Collection[str] = ()
) -> DraftConfig:
    """The config of the kind that `keys` names, from an instance of `DraftKeys` that the config calls `key`.

    `given` are the dotted keys that the user set. Raises UserError at one that this kind does not have, set so or by a
    file. Left out instead are those in `spared`, and if the user set the kind itself what a file set for another.
    """
    require(keys.kind in DRAFT_KINDS, f"{key}.kind", keys.kind, " | ".join(DRAFT_KINDS))
    own = keys_of_kind(keys.kind)
    values: dict[str, Any] = {}
    for one in fields(keys):
        value, name = getattr(keys, one.name), f"{key}.{one.name}"
        if one.name in own and value is None and _default(one) is None:
            continue  # null, or this kind's own default
        if one.name in own:
            values[one.name] = of_kind(value, name, given) if isinstance(value, DraftKeys) else value
        elif name not in spared and (name in given or (value != _default(one) and f"{key}.kind" not in given)):
            which = " | ".join(kinds_with(one.name))
            raise UserError(f"{name}={value}: {key}.kind={keys.kind} has no such option; kinds that have it: {which}")
    return DRAFT_KINDS[keys.kind](**values)
