"""The explorer computes what Python computes, keeps what its address says, and works by keyboard, narrow and dark."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from specbench import theory
from specbench.records.frame import Records
from specbench.report.explorer import page, rows, write
from tests.support.made_records import make

NAMES = ("alpha", "gamma", "c", "v_token", "step_ms", "loop_ms")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The explorer of made records: a draft at two γ, and one whose acceptance falls with the position."""
    folder = tmp_path_factory.mktemp("explorer")
    for options in ({"gamma": 3}, {"gamma": 5}, {"gamma": 3, "draft": "bigram"}):
        make(folder, **options)
    write(Records(folder), folder / "explorer.html")
    return folder / "explorer.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; skipped where it is not installed."""
    selenium = pytest.importorskip("selenium.webdriver")
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if None in found:
        pytest.skip("needs chromium and chromedriver")
    options = selenium.ChromeOptions()
    options.binary_location = found[0]
    for switch in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "disable-sync"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(found[1]))
    yield driver
    driver.quit()


def shown(browser: Any, name: str) -> str:
    """The text or the value of an element."""
    return str(
        browser.execute_script("const e = document.getElementById(arguments[0]); return e.value ?? e.textContent", name)
    )


def visit(browser: Any, address: str) -> None:
    """The page of this address, its script ended: on a busy machine `get` returns before that, with an empty page."""
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get("about:blank")
    browser.get(address)
    ended = "return location.protocol === 'file:' && document.readyState === 'complete'"
    WebDriverWait(browser, 60).until(lambda page: page.execute_script(ended))


def opened(browser: Any, file: Path, **state: Any) -> None:
    visit(browser, f"{file.as_uri()}#{urlencode(state)}")


def test_a_row_gives_the_records_own_predictions(results: Path) -> None:
    records = Records(results)
    whole = records.chains.set_index("run_id")
    by_id = {run_id[-8:]: row for run_id, row in whole.iterrows()}
    compared = 0
    for row in rows(records):
        summary = by_id[row["id"]]
        if summary["prediction"] != "Eq. 1":
            continue
        v = 1 + row["v_token"] * row["gamma"] + row["loop_ms"] / row["step_ms"]
        found = theory.walltime_improvement(row["alpha"], row["gamma"], row["c"], v)
        assert found == pytest.approx(summary["speedup_calibrated"], rel=1e-9)
        assert theory.walltime_improvement(row["alpha"], row["gamma"], row["c"]) == pytest.approx(
            summary["speedup_predicted"], rel=1e-9
        )
        compared += 1
    assert compared


def test_the_page_is_one_file_whose_data_no_name_ends(tmp_path: Path) -> None:
    make(tmp_path, hardware="a</script>b")
    text = page(Records(tmp_path))
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data and json.loads(data[1])["rows"][0]["hardware"] == "a</script>b"
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=", text)


def test_a_folder_without_a_record_says_so(tmp_path: Path, browser: Any) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(Records(tmp_path)), encoding="utf-8")
    opened(browser, file)
    assert "specbench run makes one" in browser.find_element("tag name", "main").text


STATES = [
    (0.8, 5, 0.02, 0.01, 4.0, 0.1),
    (0.0, 1, 1.0, 1.0, 0.01, 0.0),
    (1.0, 16, 0.0, 0.0, 1000.0, 100.0),
    (0.517, 7, 0.333, 0.071, 0.35, 0.006),
]


@pytest.mark.parametrize("values", STATES)
def test_the_page_computes_what_python_computes(values: tuple[float, ...], written: Path, browser: Any) -> None:
    state = dict(zip(NAMES, values, strict=True))
    opened(browser, written, **state)
    alpha, gamma, c, v_token, step_ms, loop_ms = values
    beside = v_token * gamma + loop_ms / step_ms
    assert shown(browser, "predicted") == f"{theory.walltime_improvement(alpha, int(gamma), c):.2f}×"
    assert shown(browser, "calibrated") == f"{theory.walltime_improvement(alpha, int(gamma), c, 1 + beside):.2f}×"
    at = {
        other: theory.walltime_improvement(alpha, other, c, 1 + v_token * other + loop_ms / step_ms)
        for other in range(1, 17)
    }
    best = max(at, key=lambda other: at[other])
    assert shown(browser, "best") == (str(best) if at[best] > 1 else "none")
    curve = browser.execute_script("return document.getElementById('plot').data[1].y")
    assert curve == pytest.approx(list(at.values()), rel=1e-3)
    moves = browser.execute_script(
        "return [...document.querySelectorAll('#moves tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    given = {words: speedup for words, speedup, _ in moves}
    assert given["a draft twice as fast"] == f"{theory.walltime_improvement(alpha, int(gamma), c / 2, 1 + beside):.2f}×"
    assert (
        given["no time in the loop"] == f"{theory.walltime_improvement(alpha, int(gamma), c, 1 + v_token * gamma):.2f}×"
    )


def test_keys_move_a_slider_and_the_address_keeps_it(written: Path, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, written, gamma=3)
    before = shown(browser, "calibrated")
    browser.find_element("id", "gamma-slider").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert shown(browser, "gamma") == "5" and shown(browser, "calibrated") != before
    address = browser.current_url
    visit(browser, address)
    assert shown(browser, "gamma") == "5"
    browser.find_element("id", "reset").send_keys(Keys.ENTER)
    assert shown(browser, "gamma") in shown(browser, "when")


def test_what_a_field_cannot_take_changes_nothing(written: Path, browser: Any) -> None:
    opened(browser, written, alpha=0.5)
    field = browser.find_element("id", "alpha")
    field.clear()
    field.send_keys("7")
    assert "alpha=0.5&" in browser.current_url
    assert not browser.execute_script("return document.getElementById('alpha').checkValidity()")


@pytest.mark.parametrize(
    ("name", "typed", "said"),
    [
        ("step_ms", "0", "from 0.0001 to 1000"), ("loop_ms", "-1", "from 0 to 100"), ("alpha", "7", "from 0 to 1"),
        ("gamma", "2.5", "a whole number from 1 to 16"),
    ],
)  # fmt: skip
def test_a_field_says_what_it_can_take(name: str, typed: str, said: str, written: Path, browser: Any) -> None:
    opened(browser, written, step_ms=4, loop_ms=1)
    told = browser.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('input'));"
        "return e.validationMessage",
        name,
        typed,
    )
    assert told == said


def test_an_address_cannot_set_a_step_of_no_time(written: Path, browser: Any) -> None:
    opened(browser, written, step_ms=0)
    assert float(shown(browser, "step_ms")) > 0 and shown(browser, "calibrated") != "0.00×"


def test_points_of_other_hardware_say_so(tmp_path: Path, browser: Any) -> None:
    """They are no measurements of the machine whose numbers the lines have."""
    for gamma, hardware in ((3, "a"), (5, "a"), (7, "b")):
        make(tmp_path, gamma=gamma, hardware=hardware)
    write(Records(tmp_path), tmp_path / "explorer.html")
    points = "return document.getElementById('plot').data.filter(d => d.name.startsWith('measured')).map(d => "
    for row in rows(Records(tmp_path)):
        opened(browser, tmp_path / "explorer.html", id=row["id"])
        other = {3: ([3, 5], [7], "b"), 5: ([3, 5], [7], "b"), 7: ([7], [3, 5], "a")}[row["gamma"]]
        found = browser.execute_script(points + "[d.name, d.x, d.text])")
        assert found == [
            ["measured", other[0], [row["hardware"]] * len(other[0])],
            ["measured on other hardware", other[1], [other[2]] * len(other[1])],
        ]


def test_a_choice_lists_what_was_measured(written: Path, browser: Any) -> None:
    opened(browser, written)
    drafts = browser.execute_script("return [...document.getElementById('draft').options].map(o => o.value)")
    assert len(drafts) == 2 and "bigram" in drafts
    other = next(name for name in drafts if name != shown(browser, "draft"))
    browser.execute_script(
        "const m = document.getElementById('draft'); m.value = arguments[0]; m.dispatchEvent(new Event('change'))",
        other,
    )
    assert shown(browser, "draft") == other


@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_runs_out_of_a_narrow_window_or_is_fetched(width: int, written: Path, browser: Any) -> None:
    browser.get_log("browser"), browser.get_log("performance")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    opened(browser, written)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert [one for one in browser.get_log("browser") if one["level"] == "SEVERE"] == []
    sent = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    asked = {one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"}
    assert all(url.startswith(("file:", "data:", "about:", "blob:")) for url in asked)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_picture_follows_a_change_to_dark(written: Path, browser: Any) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    opened(browser, written)
    wait, drawn = WebDriverWait(browser, 60), "return document.getElementById('plot').layout.paper_bgcolor"
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        ground = {"light": "#ffffff", "dark": "#0d1117"}[scheme]
        wait.until(lambda page, ground=ground: page.execute_script(drawn) == ground)
