"""`specbench read`: each engine's file is recognised, each number is named for what it is, and α is right."""

import gc
import gzip
import io
import json
import math
import random
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.errors import UserError
from specbench.interop.readings import FORMATS, read
from specbench.interop.readings import document as documents
from specbench.interop.readings.estimate import (
    Estimate,
    best_gamma,
    difference,
    estimate,
    expected_accepted,
    likelihood_interval,
)
from specbench.interop.readings.reading import Reading, Tally
from specbench.theory import accepted_per_drafted, expected_tokens, optimal_gamma
from tests.support import engine_samples as made
from tests.support.calls import refusal
from tests.support.kept_records import newest
from tests.support.paths import ROOT

Capture = pytest.CaptureFixture[str]
RAW = [n for row in made.counted(made.REQUESTS, made.as_it_went_on) for n in row]
CUT = [n for row in made.counted(made.REQUESTS, made.cut) for n in row]


def by_hand(accepted: list[int]) -> float:
    """α by maximum likelihood: accepted tokens over tests, of which a pass that accepts all has no rejection."""
    return sum(accepted) / (sum(accepted) + sum(n < made.GAMMA for n in accepted))


def found(tmp_path: Path, text: str, gamma: int | None = None, name: str = "file") -> tuple[str, Reading, Estimate]:
    file = tmp_path / name
    file.write_text(text)
    form, reading = read(file)
    result = estimate(reading, gamma)
    assert result is not None
    return form.name, reading, result


@pytest.mark.parametrize("name", [form.name for form in FORMATS])
def test_a_file_of_each_format_is_recognised(name: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(made.FILES[name])
    form, reading = read(file)
    assert form.name == name and form.page and form.version
    assert reading.printed and all(math.isfinite(one.value) for one in reading.printed)
    assert [other.name for other in FORMATS if other.fits(_document(file))] == [name]


def _document(file: Path):  # type: ignore[no-untyped-def]
    from specbench.interop.readings.document import Document

    return Document.read(file)


@pytest.mark.parametrize(
    "name",
    [
        "vllm-response", "aiperf", "tensorrt-llm", "vllm-metrics", "llamacpp-metrics", "vllm-log", "llamacpp-log",
        "vllm-bench", "vllm-bench-text", "llamacpp-passes", "ik-llama",
    ],
)  # fmt: skip
def test_engines_that_count_on_after_the_end_come_to_one_alpha(name: str, tmp_path: Path) -> None:
    form, _, result = found(tmp_path, made.FILES[name])
    assert form == name
    assert result.alpha == pytest.approx(by_hand(RAW)) and result.method == "maximum likelihood"
    assert result.low is not None and result.high is not None and result.low < result.alpha < result.high
    assert result.passes == len(RAW) and result.gamma == made.GAMMA
    assert result.length == pytest.approx(1 + sum(RAW) / len(RAW))
    assert result.rate == pytest.approx(sum(RAW) / made.GAMMA / len(RAW))


@pytest.mark.parametrize("name", ["sglang", "sglang-requests", "transformers"])
def test_engines_that_cut_at_the_end_come_to_another(name: str, tmp_path: Path) -> None:
    _, reading, result = found(tmp_path, made.FILES[name])
    assert reading.ends == "out"
    assert result.alpha == pytest.approx(by_hand(CUT)) and by_hand(CUT) < by_hand(RAW)
    assert result.alpha_ends is not None and result.alpha < by_hand(RAW) < result.alpha_ends


def test_our_own_record_takes_an_end_for_no_rejection(tmp_path: Path) -> None:
    _, reading, result = found(tmp_path, made.record())
    tests = [
        (a.accepted - a.after_end, 0 if a.after_end else int(a.accepted < made.GAMMA)) for r in made.REQUESTS for a in r
    ]
    accepted, rejections = map(sum, zip(*tests, strict=True))
    assert reading.ends == "censored" and result.alpha == pytest.approx(accepted / (accepted + rejections))
    assert result.requests == 3


def test_pooled_and_mean_of_requests_are_told_apart(tmp_path: Path) -> None:
    _, reading, result = found(tmp_path, made.FILES["vllm-response"])
    rows = made.counted(made.REQUESTS, made.as_it_went_on)
    mean = sum(1 + sum(row) / len(row) for row in rows) / len(rows)
    printed = {one.name: one for one in reading.printed}
    assert printed["mean_acceptance_length"].pooling == "mean of requests"
    assert printed["mean_acceptance_length"].bonus == "with" and printed["draft_acceptance_rate"].bonus == "without"
    assert printed["mean_acceptance_length"].value == pytest.approx(mean) == result.mean_length
    assert abs(mean - (result.length or 0)) > 0.3


def test_positions_are_marginal_as_printed_and_conditional_as_estimated(tmp_path: Path) -> None:
    _, reading, result = found(tmp_path, made.FILES["vllm-metrics"])
    kept = [sum(n > place for n in RAW) for place in range(made.GAMMA)]
    assert result.marginal == pytest.approx([count / len(RAW) for count in kept])
    assert result.conditional == pytest.approx([a / b for a, b in zip(kept, [len(RAW), *kept], strict=False)])
    meanings = [one.meaning for one in reading.printed]
    assert "marginal acceptance at position 4" in meanings and not any("conditional" in one for one in meanings)


def test_sums_alone_give_alpha_by_moments(tmp_path: Path) -> None:
    _, _, result = found(tmp_path, made.tensorrt(together=True))
    assert result.method == "moments" and result.gamma == made.GAMMA and result.alpha is not None
    assert expected_tokens(result.alpha, made.GAMMA) == pytest.approx(result.length)
    _, _, without = found(tmp_path, made.sglang(histogram=False))
    assert without.method == "moments"


def test_passes_that_the_file_does_not_say_come_from_gamma(tmp_path: Path) -> None:
    _, reading, without = found(tmp_path, made.FILES["llamacpp-timings"])
    assert without.alpha is None and without.rate is not None and "--gamma" in reading.notes[0]
    _, _, result = found(tmp_path, made.FILES["llamacpp-timings"], made.GAMMA)
    assert result.passes == len(RAW) and result.alpha is not None
    assert accepted_per_drafted(result.alpha, made.GAMMA) == pytest.approx(result.rate)


def test_passes_of_different_lengths(tmp_path: Path) -> None:
    """Each pass has its own gamma: the likelihood takes them as they are."""
    steps = {"per_step_drafted": [5, 3, 1, 5], "per_step_accepted": [5, 1, 1, 0]}
    stats = {
        **steps,
        "num_spec_steps": 4,
        "num_draft_tokens": 14,
        "num_accepted_draft_tokens": 7,
        "acceptance_histogram": [],
    }
    _, _, result = found(tmp_path, json.dumps({"metrics": {"speculative_decoding": stats}}))
    assert result.alpha == pytest.approx(7 / 9)
    assert result.conditional == pytest.approx([3 / 4, 1 / 2, 1, 1, 1])


def test_llamacpp_statistics_and_the_program(tmp_path: Path) -> None:
    line = (
        "statistics draft-mtp: #calls(b,g,a) = 1 20 20, #gen drafts = 20, #acc drafts = 15, #gen tokens = 40, "
        "#acc tokens = 25, #mean acc len = 2.25, #acc rate/pos = (0.750, 0.500), dur(b,g,a) = 0.1, 0.2, 0.3 ms\n"
    )
    _, _, result = found(tmp_path, line)
    assert result.alpha == pytest.approx(25 / 35) and result.conditional == pytest.approx([0.75, 2 / 3])
    _, _, program = found(
        tmp_path, "n_draft   = 4\nn_predict = 60\nn_drafted = 80\nn_accept  = 40\naccept    = 50.000%\n", 4
    )
    assert (
        program.passes == 20 and program.alpha is not None and expected_accepted(program.alpha, 4) == pytest.approx(2)
    )


@pytest.mark.statistical
def test_the_interval_covers_alpha() -> None:
    """On 400 drawn samples of 60 passes at γ=5. The 95% interval missed at most 7.5% of them: false alarm below 1%."""
    generator, missed, alpha = random.Random(0), 0, 0.7
    for _ in range(400):
        accepted = [next((n for n in range(5) if generator.random() >= alpha), 5) for _ in range(60)]
        low, high = likelihood_interval(sum(accepted), sum(n < 5 for n in accepted))
        missed += not low <= alpha <= high
    assert missed <= 30


@pytest.mark.statistical
def test_moments_and_likelihood_agree_on_many_passes() -> None:
    generator, alpha, gamma = random.Random(2), 0.8, 4
    accepted = [next((n for n in range(gamma) if generator.random() >= alpha), gamma) for _ in range(20_000)]
    sums = Tally.of_sums(sum(accepted), gamma * len(accepted), len(accepted), "file")
    whole = Tally.of_passes([(gamma, n) for n in accepted], "file")
    results = [estimate(Reading([], [tally])) for tally in (sums, whole)]
    for result in results:
        assert result is not None and result.low is not None and result.high is not None
        assert result.low < alpha < result.high and result.high - result.low < 0.02


def test_all_or_nothing_accepted_has_an_interval() -> None:
    assert likelihood_interval(0, 50) == (0.0, pytest.approx(0.0377, abs=1e-3))
    low, high = likelihood_interval(50, 0)
    assert high == 1.0 and low == pytest.approx(1 - 0.0377, abs=1e-3)
    nothing = estimate(Reading([], [Tally.of_passes([(4, 0)] * 5, "file")]))
    everything = estimate(Reading([], [Tally.of_passes([(4, 4)] * 5, "file")]))
    assert nothing is not None and nothing.alpha == 0 and everything is not None and everything.alpha == 1


def test_the_best_gamma_is_that_of_the_theory() -> None:
    assert best_gamma(0.8, 0.05).gamma == optimal_gamma(0.8, 0.05)
    assert best_gamma(0.8, 0.05, verify_cost=2.0, at=4).gamma < optimal_gamma(0.8, 0.05)


def test_a_difference_is_shown_where_there_is_one() -> None:
    def of(accepted: int, rejections: int) -> Estimate:
        passes = [(1, 1)] * accepted + [(1, 0)] * rejections
        result = estimate(Reading([], [Tally.of_passes(passes, "file")]))
        assert result is not None
        return result

    same, other = difference(of(80, 20), of(78, 22)), difference(of(800, 200), of(600, 400))
    assert same is not None and not same.shown
    assert other is not None and other.shown and other.value == pytest.approx(0.2)


CUT_FILES: dict[str, Callable[[], str]] = {
    "JSON that is cut off": lambda: made.sglang()[:-40],
    "line 3: JSON that is cut off": lambda: made.vllm_responses()[:-40],
    "line 11: a metric without a value": lambda: made.vllm_metrics()[:-5],
    "the line is cut off": lambda: made.vllm_log()[:-60],
    "a line on drafts that breaks off": lambda: made.llamacpp_log()[: made.llamacpp_log().rindex("accepted /")],
    "the file is cut off": lambda: "\n".join(made.vllm_metrics().splitlines()[:6]),
    "without speculative decoding": lambda: 'vllm:num_requests_running{engine="0"} 0.0\n',
    "none of the files that specbench read knows": lambda: "mlx: 31 tokens per second\n",
    "none of the files": lambda: "accepted / drafted   0.69  draft acceptance rate; not α: #gen drafts is another\n",
    "is empty": lambda: "\n",
    "no meta_info with spec_verify_ct": lambda: '{"text": "a", "meta_info": {"completion_tokens": 3}}',
    "no request with spec_decode_acceptance": lambda: '{"metadata": {"benchmark_phase": "profiling"}, "metrics": {}}',
    "5 of 4 drafted tokens accepted": lambda: '{"request": 0, "drafted": 4, "accepted": 5}',
    "timings of llama.cpp without draft_n": lambda: '{"content": "a", "timings": {"predicted_n": 3}}',
    "the row is damaged": lambda: made.vllm_responses().replace('_draft_tokens": 59', '_draft_tokens": 9'),
}  # fmt: skip


@pytest.mark.parametrize("said", CUT_FILES)
def test_a_file_that_cannot_be_read_gets_one_line(said: str, tmp_path: Path, capfd: Capture) -> None:
    file = tmp_path / "file.txt"
    file.write_text(CUT_FILES[said]())
    line = refusal(["read", str(file)], capfd)
    assert said in line and str(file) in line


def test_what_else_is_refused(tmp_path: Path, capfd: Capture) -> None:
    assert "nowhere.log: cannot be read" in refusal(["read", "nowhere.log"], capfd)
    file = tmp_path / "metrics"
    file.write_text(made.FILES["vllm-metrics"])
    assert "is not sglang" in (line := refusal(["read", str(file), "--as", "sglang"], capfd)) and "vllm-metrics" in line
    assert "--gamma 0: must be" in refusal(["read", str(file), "--gamma", "0"], capfd)
    assert "which also needs --c" in refusal(["read", str(file), "v=1.2"], capfd)
    file.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8 text" in refusal(["read", str(file)], capfd)


def test_two_engines_side_by_side(tmp_path: Path, capfd: Capture) -> None:
    files = []
    for name in ("vllm-metrics", "sglang"):
        files.append(str(tmp_path / name))
        Path(files[-1]).write_text(made.FILES[name])
    assert main(["read", *files, "--c", "0.05"]) == 0
    shown = capfd.readouterr().out
    assert (
        "marginal acceptance at position 1" in shown and "mean of requests" in shown and "no difference shown" in shown
    )
    assert "best γ by Theorem 3.8" in shown
    assert main(["read", *files, "format=json", "c=0.05"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [one["format"] for one in document["files"]] == ["vllm-metrics", "sglang"]
    assert document["files"][0]["estimate"]["alpha"] == pytest.approx(by_hand(RAW))
    assert len(document["differences"]) == 1 and document["files"][0]["best"]["gamma"] > 1
    assert main(["read", *files, "--format", "csv"]) == 0
    rows = capfd.readouterr().out.splitlines()
    assert rows[0].startswith("file,engine,format,source,name,value,meaning,pooling,ends,bonus") and len(rows) > 20


def test_a_real_record_reads_as_it_says(capfd: Capture) -> None:
    kept = newest(draft="t5-nano", temperature=0, gamma=3)
    assert main(["read", str(kept.file), "--format", "json"]) == 0
    (one,) = json.loads(capfd.readouterr().out)["files"]
    printed = {number["name"]: number["value"] for number in one["printed"]}
    assert one["estimate"]["alpha"] == pytest.approx(printed["alpha"], abs=0.05)


def test_the_worked_example_of_the_docs(tmp_path: Path) -> None:
    """Every value of the table in docs/acceptance.md comes from the passes above it."""
    page = (ROOT / "docs" / "acceptance.md").read_text()
    passes = re.findall(r"^\| (?:long|short) \| ([\d ()]+) \|$", page, re.M)
    written = [[_pass(word) for word in line.split()] for line in passes]
    assert written == made.REQUESTS
    _, _, pooled = found(tmp_path, made.FILES["vllm-metrics"])
    _, _, by_request = found(tmp_path, made.FILES["vllm-response"])
    _, _, cut = found(tmp_path, made.FILES["sglang"])
    _, sglang, _ = found(tmp_path, made.FILES["sglang"])
    _, _, own = found(tmp_path, made.record())
    assert pooled.length is not None and pooled.alpha is not None
    printed = {one.name: one.value for one in sglang.printed}
    expected = [
        pooled.rate, by_request.mean_rate, cut.rate, printed["spec_accept_rate"], pooled.marginal[3],
        pooled.conditional[3], pooled.length, pooled.length - 1, by_request.mean_length, printed["spec_accept_length"],
        pooled.alpha, cut.alpha, own.alpha, 1 - pooled.alpha,
    ]  # fmt: skip
    table = page.partition("All of these are called acceptance")[2].partition("\n\n## ")[0]
    values = re.findall(r"^\| (\d\.\d+) \|", table, re.M)
    assert len(values) == len(expected)
    for text, value in zip(values, expected, strict=True):
        digits = len(text.partition(".")[2])
        assert value is not None and abs(float(text) - value) <= 0.5001 * 10**-digits, (text, value)


def test_trtllm_bench_says_the_same_as_json_and_as_text(tmp_path: Path) -> None:
    written, passes = sum(one.written for r in made.REQUESTS for one in r), len(CUT)
    for text, digits in ((made.trtllm_bench(), 6), (made.trtllm_bench_text(), 1)):
        name, reading, result = found(tmp_path, text)
        assert name == "trtllm-bench" and reading.ends == "out" and result.method == "moments"
        assert result.passes == passes and result.length == pytest.approx(written / passes, abs=10**-digits)
        assert result.gamma == pytest.approx(made.GAMMA, abs=0.05)
        pooling = {one.name: one.pooling for one in reading.printed}
        assert pooling["acceptance_length, average"] == "mean of requests"


@pytest.mark.parametrize("phases", [False, True])
def test_requests_of_tensorrt_llm_need_gamma(phases: bool, tmp_path: Path) -> None:
    text = made.trtllm_requests(phases=phases)
    name, _, without = found(tmp_path, text)
    assert name == "tensorrt-llm-requests" and without.requests == 3 and without.alpha is None
    _, _, result = found(tmp_path, text, made.GAMMA)
    assert result.passes == len(RAW) and result.rate == pytest.approx(sum(RAW) / made.GAMMA / len(RAW))


def test_a_mean_without_counts_gives_no_alpha(tmp_path: Path) -> None:
    for name in ("sglang-bench", "sglang-bench-text"):
        file = tmp_path / name
        file.write_text(made.FILES[name])
        form, reading = read(file)
        assert form.name == name and not reading.requests and reading.printed[0].value == 3.2


def _statistics(drafts: int, drafted: int, accepted: int) -> str:
    return (
        f"I statistics draft: #calls(b,g,a) = 1 {drafts} {drafts}, #gen drafts = {drafts}, "
        f"#acc drafts = {drafts // 2}, #gen tokens = {drafted}, #acc tokens = {accepted}\n"
    )


def _request(accepted: int, drafted: int) -> str:
    rate = f"{accepted / drafted:.5f}"
    return (
        f"I slot print_timing: id 0 | task 1 | draft acceptance = {rate} ( {accepted} accepted / {drafted} generated)\n"
    )


def test_drafts_that_llamacpp_counts_are_passes(tmp_path: Path) -> None:
    """Requests without a mean length have as many passes as the statistics grew by."""
    text = _request(25, 40) + _statistics(10, 40, 25) + _request(30, 60) + _statistics(25, 100, 55)
    _, reading, result = found(tmp_path, text)
    assert result.passes == 25 and result.requests == 2 and result.alpha is not None
    assert [one.passes for one in reading.requests] == [10, 15]
    # Two slots at a time: only the sums agree.
    text = _request(25, 40) + _request(30, 60) + _statistics(25, 100, 55)
    _, reading, result = found(tmp_path, text)
    assert result.passes == 25 and result.requests is None and result.alpha is not None
    # Statistics of more requests than the log holds say nothing of these.
    _, _, result = found(tmp_path, _request(30, 60) + _statistics(25, 100, 55))
    assert result.passes is None and result.alpha is None


def test_below_ten_requests_the_interval_is_no_narrower_than_that_of_one() -> None:
    """Two requests alike give an interval over them next to no width."""
    passes = [(4, n) for n in (4, 2, 0, 4, 1, 3, 4, 0, 2, 4)]
    one = Tally.of_passes(passes, "file")
    alone = estimate(Reading([], [one], by_request=True))
    both = estimate(Reading([], [one, one], by_request=True))
    sums = [Tally(one.accepted, one.drafted, one.passes)] * 2
    moments = estimate(Reading([], sums, by_request=True))
    assert alone is not None and both is not None and moments is not None
    for result in (both, moments):
        assert result.low is not None and result.high is not None and result.high - result.low > 0.1
        assert result.interval is not None and "fewer than 10" in result.interval
    many = estimate(Reading([], [one] * 10, by_request=True))
    assert many is not None and many.interval == "over 10 requests" and many.low == many.high


def test_two_readings_of_counters_are_subtracted(tmp_path: Path, capfd: Capture) -> None:
    before, after, log = (tmp_path / name for name in ("before.txt", "after.txt", "log.txt"))
    before.write_text(made.vllm_metrics(made.REQUESTS[:1]))
    after.write_text(made.vllm_metrics(made.REQUESTS))
    log.write_text(made.vllm_log())
    assert main(["read", str(after), "--since", str(before), "--format", "json"]) == 0
    (one,) = json.loads(capfd.readouterr().out)["files"]
    later = [n for row in made.counted(made.REQUESTS[1:], made.as_it_went_on) for n in row]
    assert one["estimate"]["passes"] == len(later) and one["estimate"]["alpha"] == pytest.approx(by_hand(later))
    assert "counted less than" in refusal(["read", str(before), "--since", str(after)], capfd)
    assert "page of the same counters" in refusal(["read", str(log), "--since", str(before)], capfd)
    assert "not from 2" in refusal(["read", str(after), str(log), "--since", str(before)], capfd)


def test_the_standard_input_is_a_file(tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (made.vllm_metrics().encode(), gzip.compress(made.vllm_metrics().encode())):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert main(["read", "-", "--format", "json"]) == 0
        (one,) = json.loads(capfd.readouterr().out)["files"]
        assert one["format"] == "vllm-metrics" and one["estimate"]["passes"] == len(RAW)
    assert "only once" in refusal(["read", "-", "-"], capfd)


def test_a_latin_1_byte_does_not_refuse_a_log(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_bytes("prompt: caf\xe9\r\n".encode("latin-1") + made.vllm_log().encode())
    assert read(file)[0].name == "vllm-log"
    rows = made.vllm_responses().replace("…", "café").encode("latin-1")
    file.write_bytes(rows)
    assert len(read(file)[1].requests) == 3


def test_json_that_nests_deeply_is_one_line(tmp_path: Path, capfd: Capture) -> None:
    file = tmp_path / "file.json"
    for text in ("[" * 100_000, '{"a":' * 100_000, '{"a": 1}\n' + '{"a":' * 100_000, "[[" * 50_000 + "]]" * 50_000):
        file.write_text(text)
        assert "nests too deeply" in refusal(["read", str(file)], capfd)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 4096)


def _peak(work: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_compressed_bomb_is_refused_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> None:
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(b"\n" * 4_000_000))
    monkeypatch.setattr(documents, "LARGEST", 1_000_000)

    def refused() -> None:
        with pytest.raises(UserError, match="bomb.gz: larger than"):
            read(file)

    assert _peak(refused) < 500_000


@pytest.mark.parametrize("name", ["vllm-log", "tensorrt-llm", "sglang", "vllm-response"])
def test_memory_does_not_grow_with_the_file(name: str, tmp_path: Path, small_pieces: None) -> None:
    """Logs are read line by line and lists object by object; of requests only their counts are held."""
    filler = json.dumps({"text": "x" * 3000} | ({"meta_info": {}} if name == "sglang" else {"iter": 1}))
    filler = "x" * 3000 if name == "vllm-log" else filler
    text = made.FILES[name]
    rows = [json.dumps(row) for row in json.loads(text)] if name == "sglang" else text.splitlines()
    rows = [*rows[:1], *[filler] * 400, *rows[1:]]
    file = tmp_path / "file"
    file.write_text("[" + ", ".join(rows) + "]" if name == "sglang" else "\n".join(rows))
    assert file.stat().st_size > 1_200_000
    passes = []

    def work() -> None:
        result = estimate(read(file)[1])
        assert result is not None
        passes.append(result.passes)

    assert _peak(work) < 400_000 and passes == [len(RAW)]


def test_any_cut_of_a_list_is_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the pieces fall, in the middle of a letter, a number or an object."""
    file = tmp_path / "file"
    objects = [{"a": "…é" * n, "b": [n, -1.5e3]} for n in range(12)]
    file.write_text("\n [ " + " ,\n".join(json.dumps(one, ensure_ascii=False) for one in objects) + " ]\n")
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(documents, "PIECE", size)
        assert [value.fields for value in _document(file).values] == objects


def _pass(word: str) -> made.Pass:
    accepted, _, after = word.partition("(")
    return made.Pass(int(accepted), int(after.rstrip(")") or 0))


def test_accepted_over_drafted_falls_with_gamma() -> None:
    assert accepted_per_drafted(0.8, 2) == pytest.approx(0.72) and accepted_per_drafted(0.8, 8) == pytest.approx(
        0.416, abs=1e-3
    )


def test_the_lines_for_transformers_write_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code in docs/acceptance.md, run with a tiny target and draft; the counts add up to the text's length."""
    import torch
    from transformers.generation.candidate_generator import AssistedCandidateGenerator as Generator

    from tests.support.networks import network

    page = (ROOT / "docs" / "acceptance.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.S)[0]
    for name in ("get_candidates", "update_candidate_strategy"):  # put back afterwards
        monkeypatch.setattr(Generator, name, getattr(Generator, name))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    target, draft = network("gpt2", seed=1), network("gpt2", seed=1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(5)))
    draft.generation_config.update(
        num_assistant_tokens=3, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    lengths = []
    for request in range(2):
        names["request"] = request
        prompt = torch.tensor([[5 + request, 7, 9]])
        text = target.generate(
            prompt, attention_mask=torch.ones_like(prompt), assistant_model=draft, do_sample=False, max_new_tokens=20,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        lengths.append(text.shape[1] - prompt.shape[1])
    names["log"].close()
    form, reading = read(tmp_path / "PASSES.jsonl")
    assert form.name == "transformers" and len(reading.requests) == 2
    for tally, length in zip(reading.requests, lengths, strict=True):
        assert tally.passes is not None and 0 <= length - (tally.accepted + tally.passes) <= 2


# Lines of posts to public trackers (numbers as there), and what follows from their counts.
CALLS = (
    "statistics {}: #calls(b,g,a) = 1 {} {}, #gen drafts = {}, #acc drafts = 2, #gen tokens = {}, #acc tokens = {}, "
    "dur(b,g,a) = 0.001, 40.6, 0.2 ms\n"
)
MLX = '{{"timings": {{"predicted_n": {}, "draft_rounds": {}, "draft_n": {}, "draft_n_accepted": {}}}}}'
BARE = (
    "Accepted throughput: 124.69 tokens/s, Drafted throughput: 480.85 tokens/s, Accepted: {} tokens, "
    "Drafted: {} tokens, Per-position acceptance rate: {}, Avg Draft acceptance rate: {}%\n"
)
V0 = (
    "Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, Number of speculative tokens: 3, "
    "Number of accepted tokens: 8547, Number of draft tokens: 13311, Number of emitted tokens: 10616.\n"
)


@pytest.mark.parametrize(
    ("text", "form", "passes", "length"),
    [
        # llama.cpp#23544: 229 of 699 passes had no draft
        (_request(1093, 1717) + CALLS.format("draft-simple", 699, 364, 470, 1717, 1093), "llamacpp-log", 470, 2.564),
        (CALLS.format("draft-simple", 699, 364, 470, 1717, 1093), "llamacpp-log", 470, 2.564),
        (MLX.format(111, 30, 90, 81), "llamacpp-timings", 30, 110 / 30),  # mlx-vlm#1788
        (MLX.format(2, 1, 7, 6), "llamacpp-timings", 1, 1.0),  # mlx-vlm#2324: accepted tokens past the end
        (BARE.format(1247, 4809, "0.757, 0.491, 0.303, 0.157, 0.074, 0.025, 0.009", 25.9), "vllm-log", 687, 2.815),
        (BARE.format(22, 9210, ", ".join(["0.036"] + 14 * ["0.000"]), 0.2), "vllm-log", 614, 1.036),
        (V0, "vllm-v0-log", 4437, 2.393),  # vllm#9539
    ],
)
def test_what_people_post_has_its_passes(text: str, form: str, passes: int, length: float, tmp_path: Path) -> None:
    name, _, result = found(tmp_path, text)
    assert (name, result.passes) == (form, passes) and result.length == pytest.approx(length, abs=1e-3)


def test_several_kinds_of_draft_in_one_log_have_a_row_each(tmp_path: Path, capfd: Capture) -> None:
    """llama.cpp#23269: the second kind drafts where the first finds nothing."""
    file = tmp_path / "log"
    file.write_text(
        CALLS.format("ngram-mod", 800, 4, 4, 256, 47) + CALLS.format("draft-mtp", 796, 796, 796, 1585, 1252)
    )
    assert main(["read", str(file), "--format", "json"]) == 0
    document = json.loads(capfd.readouterr().out)
    lengths = {one["file"].removeprefix(str(file)): one["estimate"]["length"] for one in document["files"]}
    assert lengths == {
        " (all kinds)": pytest.approx(1 + 1299 / 800),
        " (ngram-mod)": pytest.approx(12.75),
        " (draft-mtp)": pytest.approx(2.573, abs=1e-3),
    }
    assert document["differences"] == []  # the kinds of one log are no two measurements


def test_passes_of_different_lengths_are_read_line_by_line(tmp_path: Path) -> None:
    """llama.cpp#18211: five passes, of which two accept all that was drafted."""
    text = "".join(
        f"slot update_slots: id  3 | task 0 | accepted {n}/{gamma} draft tokens, new n_tokens = 7\n"
        for n, gamma in ((1, 16), (2, 16), (16, 16), (16, 16), (3, 4))
    )
    _, reading, result = found(tmp_path, text)
    assert (result.passes, reading.requests[0].drafted, reading.requests[0].accepted) == (5, 68, 38)
    assert reading.requests[0].rejections == 3 and result.alpha == pytest.approx(38 / 41)


def test_a_draft_that_is_cut_off_is_named(tmp_path: Path, capfd: Capture) -> None:
    """No position from the sixth on is ever accepted; where acceptance fades away, nothing is said."""
    file = tmp_path / "log"
    file.write_text(BARE.format(89, 975, "0.600, 0.385, 0.215, 0.108, 0.062" + 10 * ", 0.000", 9.1))
    assert main(["read", str(file)]) == 0
    assert "no pass accepted position 6 or a later one" in capfd.readouterr().out
    file.write_text(BARE.format(60, 700, "0.500, 0.080, 0.020" + 4 * ", 0.000", 8.6))
    assert main(["read", str(file)]) == 0
    assert "no pass accepted" not in capfd.readouterr().out


def test_what_has_been_given_is_not_asked_for(tmp_path: Path, capfd: Capture) -> None:
    file = tmp_path / "metrics.txt"
    asking = [name for name in made.FILES if "--gamma" in str(read_notes(tmp_path, name))]
    assert asking
    for name in asking:
        file.write_text(made.FILES[name])
        assert main(["read", str(file)]) == 0 and "--gamma" in capfd.readouterr().out
        assert main(["read", str(file), "--gamma", "4"]) == 0 and "--gamma" not in capfd.readouterr().out


def read_notes(tmp_path: Path, name: str) -> tuple[str, ...]:
    (tmp_path / name).write_text(made.FILES[name])
    return tuple(read(tmp_path / name)[1].notes)
