import base64
import re
import warnings

import pytest
from data_sets import agent_turns, told, walks

import diaster
from diaster.config import METHODS
from diaster.offline.report import report_page


def page_of(data, **settings) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return report_page(diaster.fit(data, updates=0, method={"name": "rrd", "hidden": 8}, **settings))


def drawings(page: str) -> list[str]:
    """The pictures of a page, whose texts are in their comments."""
    pictures = re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", page)
    return [base64.b64decode(picture).decode() for picture in pictures]


@pytest.fixture(scope="module")
def of_steps() -> str:
    return page_of(walks(40))


@pytest.fixture(scope="module")
def of_turns() -> str:
    records, _ = agent_turns(60)
    records[0]["turns"][0]["text"] = "<script>alert(1)</script>"
    for record in records:
        record["turns"][0]["text"] = records[0]["turns"][0]["text"]
    return page_of(records, outcome="binary")


def test_the_page_needs_no_network_and_no_script(of_steps: str, of_turns: str) -> None:
    for page in (of_steps, of_turns):
        assert "default-src 'none'; img-src data:; style-src 'sha256-" in page.replace("&#39;", "'")
        assert not re.search(r"(src|href)=\"(?!data:)", page) and "<script" not in page


def test_it_has_the_fit_with_its_interval_and_the_credit_of_a_few_episodes(of_steps: str) -> None:
    assert re.search(r"fit_r2 [01]\.\d{3} \(95 % interval [01]\.\d{3} to ", of_steps)
    assert of_steps.count("rewards sum to") == 4 and of_steps.count('<img alt="reward of every step') == 4
    assert "correlation with the data set&#39;s own rewards" in of_steps
    assert "The reward at t belongs to\n    (s_t, a_t)" in of_steps


def test_pictures_are_drawings_that_can_be_read(of_steps: str) -> None:
    pictures = drawings(of_steps)
    assert len(pictures) == 6 and all("<svg" in picture for picture in pictures)


def test_numbers_on_axes_are_plain(of_steps: str) -> None:
    texts = " ".join(drawings(of_steps))
    assert "mathdefault" not in texts and "<!-- 0.1 -->" in texts


def test_every_line_of_a_picture_has_a_name(of_steps: str) -> None:
    fit, *credit, search = drawings(of_steps)
    assert "<!-- both are the same -->" in fit
    assert all("<!-- return -->" in picture and "<!-- learnt reward -->" in picture for picture in credit)
    assert "<!-- without rewards -->" in search and "<!-- the model that is kept -->" in search


def test_learnt_rewards_have_the_colour_of_their_method_as_in_every_figure(of_steps: str, of_turns: str) -> None:
    for page in (of_steps, of_turns):
        found = re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", page)
        pictures = [base64.b64decode(picture).decode() for picture in found]
        assert all(METHODS["rrd"].colour in picture for picture in pictures)
        assert not any(METHODS["diaster"].colour in picture for picture in pictures)


def test_turns_are_a_table_with_their_texts_which_are_only_texts(of_turns: str) -> None:
    assert of_turns.count("&lt;script&gt;alert(1)") == 4
    assert of_turns.count('<th scope="col">turn</th>') == 4
    assert set(re.findall(r"rewards sum to ([^;.]*)[.;]", of_turns)) == {"0", "1"}
    assert 'class="gain"' in of_turns and 'class="loss"' in of_turns
    assert "changes the predicted probability of a good outcome" in of_turns
    assert "15; each is held out whole" in of_turns


def test_what_was_warned_of_and_skipped_comes_first() -> None:
    stored = told(walks(20))
    stored[3]["return"] = None
    page = page_of(stored, skip_bad=True)
    assert page.index("Read this first") < page.index("How good the rewards are")
    assert "1 bad episode skipped." in page and "episode 3: it has neither a return" in page
