"""A twin from end to end: a sweep of an experiment on the models that ship, and its rows in tables and figures."""

from pathlib import Path

import pytest

from specbench.cli import main
from specbench.config.paths import shipped
from specbench.records.frame import Records
from specbench.report.tables import TABLES


@pytest.mark.full
@pytest.mark.skipif(not shipped("models", "t5-mini").is_dir(), reason="the shipped models are not there")
def test_a_twin_fills_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["limit=2", "max_new_tokens=12", "draft=bigram", "sampling.temperature=0", f"results={tmp_path}"]
    assert main(["sweep", "experiment=table3-mini", "threads=1", f"draft.cache_dir={tmp_path}", *few]) == 0
    records = Records(tmp_path)
    assert records.paper_runs["draft"].tolist() == ["bigram"]
    shown = TABLES["table3"](records).shown
    assert shown["M_q, ours"].tolist()[-1] == "bigram"
    assert shown["T=0, ours"].str.startswith("0.").tolist()[-1]
    lenient = TABLES["table5"](records).shown
    assert (lenient["M_p, ours"] == "t5-mini").sum() == 4
    capsys.readouterr()
    assert main(["show", "bigram", f"results={tmp_path}"]) == 0
    assert "target passes" in capsys.readouterr().out
    assert main(["figures", "cost", f"results={tmp_path}", f"output={tmp_path}"]) == 0
