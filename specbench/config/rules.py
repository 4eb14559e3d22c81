"""The acceptance rules, found by their files, and `accept=` as a user writes it: a class with the keys of all rules."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from specbench.config.extensions import extensions, loaded
from specbench.config.keys import HELP, key, require
from specbench.config.rule import AcceptConfig, RuleConfig
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.algorithm.acceptance.base import Verification
    from specbench.sampling import Sampling

# Imported by name, and not by an import statement: `config` is below `algorithm`, and reads nothing but keys there.
ROOM = "specbench.algorithm.acceptance.rules"


def _rules_of_this_package() -> Iterator[type[RuleConfig]]:
    for file in iter_modules(import_module(ROOM).__path__):
        module = import_module(f"{ROOM}.{file.name}")
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, RuleConfig) and one.__module__ == module.__name__:
                yield one


def _added() -> Iterator[type[RuleConfig]]:
    """Rules with keys, of other packages. The others are imported when they are used: they may import torch."""
    for name, entry in extensions("rules").items():
        if entry.attr.endswith("Config"):
            kind = loaded("rules", name)
            if not (isinstance(kind, type) and issubclass(kind, RuleConfig) and kind.name == name):
                raise UserError(f"specbench.rules: {name} must be a RuleConfig whose name is {name!r}")
            yield kind


def _place(kind: type[RuleConfig]) -> tuple[bool, bool, str]:
    """Algorithm 1 first, then lossless rules, then lossy ones."""
    return kind.name != "exact", kind.lossy, kind.name


RULES: dict[str, type[RuleConfig]] = {
    kind.name: kind for kind in sorted([*_rules_of_this_package(), *_added()], key=_place)
}
# Whose key it is.
RULE_OF: dict[str, str] = {one.name: name for name, kind in RULES.items() for one in fields(kind)}
assert len(RULE_OF) == sum(len(fields(kind)) for kind in RULES.values()), "two rules have a key of the same name"


@dataclass
class AddedRule(RuleConfig):
    """A rule of another package: a `ChainRule`, or a function as `acceptance.base.AcceptanceRule` says."""

    rule: str = ""

    def verification(self, sampling: "Sampling") -> "Verification":
        from specbench.algorithm.acceptance.base import Verification

        return Verification(loaded("rules", self.rule), sampling)

    def label(self) -> str:
        return self.rule

    def slug(self) -> str:
        return f"-{self.rule}"


def _keys() -> Iterator[tuple[str, Any, Any]]:
    kinds = [" | ".join(name for name, kind in RULES.items() if kind.lossy == lossy) for lossy in (False, True)]
    yield "rule", str, key("exact", f"{kinds[0]} (lossless), {kinds[1]} (lossy)")
    for name, kind in RULES.items():
        for one in fields(kind):
            type_name = one.type if isinstance(one.type, str) else one.type.__name__
            yield one.name, f"{type_name} | None", field(default=None, metadata={HELP: f"{name}: {one.metadata[HELP]}"})


AcceptKeys: type[AcceptConfig] = make_dataclass(
    "AcceptKeys",
    list(_keys()),
    bases=(AcceptConfig,),
    namespace={"__module__": __name__, "__doc__": AcceptConfig.__doc__},
)


def rule_of(accept: AcceptConfig) -> RuleConfig:
    """The rule that `accept` names, with its keys.

    Raises UserError if there is no such rule, one of its keys is not set, or a key of another rule is.
    """
    require(accept.rule in rule_names(), "accept.rule", accept.rule, " | ".join(rule_names()))
    values = {name: value for name in RULE_OF if (value := getattr(accept, name, None)) is not None}
    for name, value in values.items():
        if RULE_OF[name] != accept.rule:
            raise UserError(f"accept.{name}={value}: only accept={RULE_OF[name]} has this option; set both, or neither")
    if accept.rule not in RULES:
        return AddedRule(accept.rule)
    for one in fields(RULES[accept.rule]):
        if one.name not in values:
            raise UserError(f"accept.{one.name} is not set: accept={accept.rule} requires it")
    return RULES[accept.rule](**values)


def rule_names() -> list[str]:
    """The names for `accept=`, other packages' rules last."""
    return [*RULES, *(name for name in extensions("rules") if name not in RULES)]


def choice_of(kind: type[RuleConfig]) -> dict[str, object]:
    """The meaning of `accept=NAME`: the rule, and its keys at their defaults."""
    defaults = {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    return {"rule": kind.name, **defaults}
