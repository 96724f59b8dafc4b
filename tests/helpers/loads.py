"""Random loads: requests in company, served without drafts in a large pool, and then by the same settings with the drafts of one drafter.

Drafters draft as much as there is room for, whatever it costs, and count.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from serving import Run, read_adapters, serve
from small_grammars import grammar, ready
from speculating import AsMuchAsFits, Scripted, request, settings, waves

from ridgeline.config.groups import EngineConfig
from ridgeline.core.drafts.auto import AutoDrafter
from ridgeline.core.drafts.depth import Offer
from ridgeline.core.drafts.drafter import Drafter
from ridgeline.core.drafts.heads import HeadDrafter
from ridgeline.core.drafts.model import ModelDrafter
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.drafts.suffix import OutputStore
from ridgeline.core.events import Finish
from ridgeline.core.params import Adapter, Admitted
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence, State
from ridgeline.engine.engine import Engine
from ridgeline.facts.headers.adapter import digest_of, file_contents, read_adapter
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.planning.memory import kv_costs

Prepare = Callable[[Engine], None]
LOAD = 10
"""Requests of one load."""
FEW = (7, 8, 9)
"""Ids whose answers repeat themselves and each other."""
END = 1
FORCED = (
    grammar('start: ("abcab" /[0-9x]/ "KEY: NOW; ")+'),
    grammar('start: %json {"type": "object", "properties": {"NAME": {"enum": ["Q1", "Q2"]}, "ZONE": {"type": "boolean"}}, '
            '"required": ["NAME", "ZONE"], "additionalProperties": false}'),
)  # fmt: skip
"""Grammars that leave little choice: of ids of lower-case letters, which are bytes too, and none of upper-case ones behind N."""
GRAMMARS = (*FORCED, grammar("start: /[ab]{2,40}/"), grammar('start: (/[a-z]{1,3}/ ";")+'))


class Load:
    """Random requests and settings. Loads with even seeds share prefixes, and have little more memory with drafts than one request needs,
    so that whoever is younger is preempted.

    grammars  that requests follow; `share` of them do
    adapters  requests of every third load are for the adapters beside the model's file, or for none
    """

    def __init__(
        self, model: tuple[str, Path], seed: int, grammars: tuple[Any, ...] = GRAMMARS, share: float = 0.2, *, adapters: bool = True
    ) -> None:
        self.seed = seed
        self.draw, (self.runner, self.path) = Random(seed), model
        facts = read_model_facts(self.path)
        self.vocab, self.is_recurrent = facts.tokens, facts.state is not None
        self.requests = [self._request(number, grammars, share) for number in range(LOAD)]
        self.chosen: dict[str, Any] = settings(self.draw, self.runner)
        if seed % 2 == 0:
            self._share_prefixes()
        self.adapters = adapters_of(self.path) if adapters and seed % 3 == 0 else []
        if self.adapters:
            self.chosen |= {"enable_lora": True, "max_loras": 2}
            self.requests = [replace(each, adapter=self.draw.choice((None, *self.adapters))) for each in self.requests]

    def _request(self, number: int, grammars: tuple[Any, ...], share: float) -> Admitted:
        made = request(number, self.draw, self.vocab)
        if self.draw.random() >= share:
            return made
        asked = replace(self.draw.choice(grammars), is_optional=self.draw.random() < 0.3)
        sampling = replace(made.sampling, grammar=asked, allowed_ids=None, thinking=None)
        return replace(made, sampling=sampling, stop_ids=made.stop_ids | {END})

    def _share_prefixes(self) -> None:
        shared = tuple(self.draw.randrange(4, self.vocab) for _ in range(20))
        self.requests = [
            replace(each, prompt=shared + each.prompt, max_tokens=max(each.max_tokens, 9)) if self.draw.random() < 0.7 else each
            for each in self.requests
        ]
        longest = max(len(each.prompt) + each.max_tokens for each in self.requests)
        self.chosen |= {"enable_prefix_caching": True, "block_size": 4, "max_model_len": longest}

    def narrow(self, share: float = 1.0, **sampling: Any) -> None:
        """Lets a share of the requests without a grammar answer with few different ids."""
        few = {"allowed_ids": FEW, "bad_words": (), **sampling}
        self.requests = [
            replace(each, sampling=replace(each.sampling, **few)) if each.sampling.grammar is None and self.draw.random() < share else each
            for each in self.requests
        ]

    def plain(self, prepare: Prepare | None = None) -> Run:
        return self._serve(prepare, {"speculative": "off"})

    def drafted(self, kind: str, answers: Run, drafts: Path | None = None, prepare: Prepare | None = None) -> tuple[Run, list[Any]]:
        """Served with drafts; also returns their drafters, which count. `drafts`: the draft model or the heads; `prepare` is called when
        the drafter is there.

        kind  scripted: made of `answers`; ngram, suffix; itself, another: a draft model; auto: this beside suffix; heads; mtp
        """
        drafters: list[Any] = []

        def attach(engine: Engine) -> None:
            engine.scheduler.drafter = self._drafter(kind, engine, answers, drafters)
            if prepare is not None:
                prepare(engine)

        word = {"scripted": "ngram", "ngram": "ngram", "suffix": "suffix", "auto": "auto", "mtp": "mtp"}.get(kind, "draft")
        own = {"speculative": word} | ({} if drafts is None else {"draft_model": str(drafts)})
        return self._serve(attach, own | self._pool()), drafters

    def _drafter(self, kind: str, engine: Engine, answers: Run, drafters: list[Any]) -> Drafter:
        depth, cache = self.draw.randint(1, 4), engine.executor.info.drafts
        if kind == "scripted":
            drafters.append(Scripted({key: ids for key, (ids, _) in answers.answers.items()}, self.draw, depth, self.vocab))
        elif kind in ("ngram", "suffix"):
            drafters.append(CountedLookup(depth, (), False, OutputStore() if kind == "suffix" else None))
        else:
            assert cache is not None
            small = cache._replace(passes=(), blocks=cache.blocks if self.draw.random() < 0.7 else 3 * cache.groups)
            drafters.append((CountedHeads if cache.window else CountedModel)(depth, (), True, small))
        if kind == "auto":
            drafters.append(CountedLookup(4, (), True, OutputStore()))
            return AutoDrafter(drafters[1], drafters[0], ())
        made: Drafter = drafters[0]
        return made

    def _pool(self) -> dict[str, object]:
        if self.seed % 2:
            return {}
        sizes: dict[str, Any] = {name: self.chosen[name] for name in ("block_size", "max_num_batched_tokens", "kv_dtype")}
        costs = kv_costs(read_model_facts(self.path), EngineConfig(model="", **sizes))
        return {"kv_cache_memory_bytes": (costs.sequence_blocks(self.chosen["max_model_len"]) + 2) * costs.block_bytes}

    def _serve(self, prepare: Prepare | None, own: dict[str, object]) -> Run:
        def begin(engine: Engine) -> None:
            read_adapters(engine, self.adapters)
            compile_grammars(engine, [each.sampling.grammar for each in self.requests if each.sampling.grammar is not None])
            if prepare is not None:
                prepare(engine)

        return serve(self.path, waves(self.requests, self.draw), begin, **self.chosen | own)

    def same(self, run: Run, expected: Run) -> None:
        for key in expected.answers:
            assert run.answers[key] == expected.answers[key], f"load {self.seed}, {key}"
        assert run.ends == expected.ends, f"load {self.seed}"
        for name, scores in expected.scores.items():  # how many came before an error depends on how the prompt was cut
            assert run.scores.get(name) == scores or expected.ends[name, 0] is Finish.ERROR, f"load {self.seed}, {name}"


def compile_grammars(engine: Engine, grammars: list[Any]) -> None:
    """The engine is driven without waiting, so they are there before the first request. What one forces is known when the next one is."""
    compiler: Any = engine.executor.grammars
    for each in (*grammars, *([grammar('start: "the last"')] if grammars else [])):
        assert ready(compiler, each) is None


def adapters_of(path: Path) -> list[Adapter]:
    """Adapters in the folder "adapters" beside a model's file."""
    facts = read_model_facts(path)
    folders = sorted(path.parent.glob("adapters/*"))
    return [Adapter(each.name, digest_of(file_contents(read_adapter(each, facts))), str(each)) for each in folders]


class Tally:
    """What happened in some loads."""

    def __init__(self) -> None:
        self.loads = self.drafted = self.accepted = self.preempted = self.hits = self.grammars = self.forced = self.adapted = 0
        self.is_recurrent = False

    def add(self, load: Load, run: Run, drafters: list[Any]) -> None:
        """Drafts of the first drafter count; beside it may be prompt lookup, which knows of forced ones."""
        self.loads += 1
        self.is_recurrent = load.is_recurrent
        self.drafted += drafters[0].drafted
        self.accepted += drafters[0].accepted
        self.forced += getattr(drafters[-1], "forced", 0)
        self.preempted += run.preempted
        self.hits += run.hit_tokens
        self.adapted += sum(each.adapter is not None for each in load.requests)
        self.grammars += sum(len(run.answers[each.request_id, 0][0]) > 2 for each in load.requests if each.sampling.grammar is not None)

    def check(self, accepted: float = 0.0) -> None:
        """Whatever loads are about has happened; more than `accepted` drafts a load were right."""
        found = vars(self)
        assert self.drafted > 5 * self.loads and self.accepted > accepted * self.loads, found
        assert self.preempted and self.grammars and (self.hits or self.is_recurrent), found  # recurrent states are never shared


class Eager(AsMuchAsFits, ModelDrafter):
    """Counts drafts, and those of them that were right, of rows that go on."""

    drafted = accepted = 0

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        ids_of = dict(zip(plan.row, result.sampled, strict=True))
        ended = {sequence.row for sequence in sequences if sequence.state is not State.RUNNING}
        for span in plan.spans:
            if span.drafts and span.row not in ended:
                self.drafted += span.drafts
                self.accepted += len(ids_of[span.row]) - 1
        super().on_commit(sequences, plan, result)


class CountedModel(Eager):
    """A draft model whose drafts are counted."""


class CountedHeads(Eager, HeadDrafter):
    """Heads whose drafts are counted, now and then none at all, so that hidden states are gone before they are read."""

    def _depths(self, tokens: int, offers: list[Offer], rows: int, max_drafts: int) -> list[int]:
        depths = super()._depths(tokens, offers, rows, max_drafts)
        return depths if tokens % 3 else [0] * len(depths)


class CountedLookup(PromptLookupDrafter):
    """Prompt lookup whose drafts are counted; `forced`: those of text that a grammar forces, which were right. A price that nobody measured
    lets every step draft."""

    drafted = accepted = forced = 0

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        told = self.__dict__.setdefault("told", {})
        for sequence, samples, ids in zip(sequences, plan.sample, result.sampled, strict=True):
            right, expected = max(0, len(ids) - 1), told.pop(sequence, ())
            self.drafted += max(0, samples - 1)
            self.accepted += right
            self.forced += right if ids[:right] == expected[:right] else 0
        told.update({sequences[index]: ids for index, ids in result.forced})
        super().on_commit(sequences, plan, result)
