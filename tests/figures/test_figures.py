"""figures: what is drawn (cells, lanes, bars, labels, colours), not its pixels."""

import dataclasses
import io
import itertools
import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyBboxPatch, Rectangle

from tests.browser import open_browser, visit
from utils import figures
from utils.events.event import Event, Region
from utils.events.memory_samples import MemoryNote
from utils.figures.living import short
from utils.figures.picture import DEEP, DPI, NOTEBOOK, SECONDS, fitting, ground
from utils.figures.work import OTHER_WORK, SHADES
from utils.report.memory import Memory
from utils.report.run import Run

NAMES = ("broadcast", "scatter", "gather", "reduce", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def texts(panel) -> list[str]:
    return [text.get_text() for text in panel.texts]


def stripes(panel) -> list[str]:
    """The colours of all filled rectangles."""
    return [
        to_hex(patch.get_facecolor()).upper() for patch in panel.patches if isinstance(patch, Rectangle) and patch.fill
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_every_collective_shows_all_ranks_before_and_after(name, world_size):
    before, after = figures.collective(name, world_size, root=world_size - 1).axes
    for panel in (before, after):
        assert len(texts(panel)[: world_size * 9]) > world_size
        for rank in range(world_size):
            assert (f"rank {rank}" if world_size < 5 else str(rank)) in texts(panel)


def test_a_broadcast_gives_every_rank_the_colour_of_the_root():
    before, after = figures.collective("broadcast", 4, root=2).axes
    assert stripes(before) == [figures.COLOURS[2]]
    assert stripes(after) == [figures.COLOURS[2]] * 4
    assert texts(before).count("") == 3


def test_a_sum_has_a_stripe_per_rank():
    _, after = figures.collective("reduce", 4, root=1).axes
    assert stripes(after) == figures.COLOURS[:4]
    assert "a+b+c+d" in texts(after)


def test_an_all_to_all_is_drawn_as_a_transpose():
    before, after = figures.cells_of("all_to_all", 3, root=0)
    assert [list(row) for row in zip(*before, strict=True)] == after
    assert before[1] == ["b0", "b1", "b2"]
    assert after[1] == ["a1", "b1", "c1"]


def test_the_two_halves_make_up_an_all_reduce():
    before, between, after = figures.halves(4).axes
    assert texts(between).count("a2+b2\n+c2+d2") == 1
    assert texts(after).count("a2+b2\n+c2+d2") == 4
    assert [panel.get_title() for panel in (before, between, after)][1:] == ["after reduce-scatter", "after all-gather"]


def test_a_transpose_keeps_the_colour_of_each_number():
    matrix, turned = figures.transpose(world_size=2, rows=2, columns=3).axes
    assert len(stripes(matrix)) == len(stripes(turned)) == 24
    colour_in_matrix = dict(zip(texts(matrix), stripes(matrix), strict=False))
    colour_in_turned = dict(zip(texts(turned), stripes(turned), strict=False))
    assert all(colour_in_turned[number] == colour for number, colour in colour_in_matrix.items())


def test_traffic_shows_the_bytes_of_each_source_and_destination():
    sends = [
        Event(1, i, "send", "world", (0, 1, 2), peer, 0, 4000, "float32", (1000,), "", False, 0.0, 1.0, "cell:1")
        for i, peer in enumerate((0, 2, 2))
    ]
    [panel] = figures.traffic(Run(3, "real", "gloo", [], [], sends, 0.0), "who sends").axes
    assert sorted(filter(None, texts(panel))) == ["4,000", "8,000"]
    assert sum(isinstance(patch, FancyBboxPatch) for patch in panel.patches) == 9
    figures.traffic(Run(2, "real", "gloo", [], [], [], 0.0), "silence").png()


def test_a_picture_is_a_small_svg_with_the_same_bytes_each_time():
    first, second = (figures.collective("all_gather") for _ in range(2))
    assert first._repr_html_() == second._repr_html_() and "data:image/svg+xml" in first._repr_html_()
    assert len(first.svg()) < len(first.png()) < 30_000
    assert re.findall("<text[^>]*>all-gather</text>", first.svg())
    assert repr(first) == "Picture('all-gather')"


def test_a_picture_with_very_much_in_it_is_a_png():
    crowded = figures.Picture(2, 1, "dots")
    axes = crowded.subplots()
    axes.scatter(range(2000), range(2000), c=range(2000))
    assert "data:image/png" in crowded._repr_html_()


@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_that_no_svg_may_contain_are_left_out():
    assert ElementTree.fromstring(figures.Picture(2, 1, "a\x00\x08 <b>").svg()).tag.endswith("svg")


def test_a_small_svg_draws_all_that_matplotlibs_own_does():
    picture = figures.halves(3)
    with rc_context({"svg.fonttype": "none"}):
        picture.savefig(own := io.StringIO(), format="svg")

    def drawn(svg: str) -> list[tuple]:
        rules = dict(re.findall(r"\.(c\d+){(.*?)}", svg))
        elements = [(one.tag.split("}")[1], one) for one in ElementTree.fromstring(svg).iter()]
        looks = [one.get("style") or rules.get(one.get("class"), "") for _, one in elements]
        return [
            (kind, (one.text or "").strip(), re.findall(r"(?:fill|stroke): ?([^;]*)", look))
            for (kind, one), look in zip(elements, looks, strict=True)
            if kind in ("path", "use", "text", "rect")
        ]

    assert len(drawn(picture.svg())) > 100 and drawn(picture.svg()) == drawn(own.getvalue())


@pytest.mark.parametrize(
    "theme, look",
    [
        ('data-jp-theme-light="true"', "none"),
        ('data-jp-theme-light="false"', "invert(1) hue-rotate(180deg)"),
        ('class="vscode-light"', "none"),
        ('class="vscode-dark"', "invert(1) hue-rotate(180deg)"),
    ],
)
def test_a_notebook_shows_a_picture_in_the_colours_of_its_theme(theme, look):
    picture = figures.Picture(2, 1, 'ranks <0> & "1"')
    with open_browser() as browser, visit(browser, "about:blank") as seen:
        seen.page.set_content(f"<body {theme}><img>{picture._repr_html_()}</body>")
        images = seen.page.evaluate("[...document.images].map(one => [one.alt, getComputedStyle(one).filter])")
    assert images == [["", "none"], ['ranks <0> & "1"', look]]


def luminance(colour) -> float:
    red, green, blue = to_rgb(colour)
    return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2


@pytest.mark.parametrize("colour", sorted({*figures.COLOURS, *figures.KINDS, *figures.WORK.values(), *OTHER_WORK}))
def test_black_letters_are_readable_on_every_colour(colour):
    assert (luminance(colour) + 0.05) / 0.05 > 4.5  # required of text by the web's accessibility guidelines


HUE_ROTATE = numpy.array([[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]])  # CSS's, by 180 degrees


@pytest.mark.parametrize("colour", sorted({*figures.WORK.values(), *OTHER_WORK, *itertools.chain(*SHADES.values())}))
def test_letters_on_bars_are_readable_in_a_dark_theme(colour):
    paper = DEEP if ground(colour) else 0
    behind = (1 - paper) * numpy.array(to_rgb(colour)) + paper
    assert 1.05 / (luminance((HUE_ROTATE @ (1 - behind)).clip(0, 1)) + 0.05) > 4.4


# How eyes without green, red or blue cones see linear RGB: Machado, Oliveira and Fernandes 2009.
EYES = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
TO_XYZ = numpy.array([[0.434, 0.376, 0.190], [0.213, 0.715, 0.072], [0.018, 0.109, 0.873]])  # white is (1, 1, 1)


def lab(colour: str, eyes) -> numpy.ndarray:
    """A colour in a space where distances are perceived ones: about 2 is just noticeable side by side."""
    x, y, z = numpy.cbrt(TO_XYZ @ (numpy.array(eyes) @ numpy.array(to_rgb(colour)) ** 2.2).clip(0, 1))
    return numpy.array([116 * y, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("colours", [figures.KINDS, [*figures.WORK.values(), *OTHER_WORK]], ids=["lines", "work"])
def test_everyone_can_tell_kinds_apart(eyes, colours):
    seen = [lab(colour, EYES[eyes]) for colour in colours]
    assert min(numpy.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12


def test_messages_keep_away_from_every_shade_of_compute():
    """A pipeline's schedule has shades for its chunks, and its timeline has sends and receives beside them."""
    for op, eyes in itertools.product(("send", "recv", "all_reduce"), EYES.values()):
        for shade in (shade for shades in SHADES.values() for shade in shades):
            assert numpy.linalg.norm(lab(figures.WORK[op], eyes) - lab(shade, eyes)) > 7


def test_a_kind_of_work_has_one_colour_in_every_picture():
    def colours_in(picture) -> dict[str, str]:
        return {p.get_label(): to_hex(p.get_facecolor()).upper() for p in picture.legends[0].get_patches()}

    def colours_of(picture) -> dict[str, str]:
        return {kind: look.colour for kind, look in picture.legend.items()}

    early, late = run_of(CALLS, STEP), run_of(CALLS[::-1], [Region(0, "own", 0, 9), *STEP[::-1]])
    drawn = [colours_of(picture) for picture in (early.timeline(), late.timeline())]
    drawn.append(colours_in(figures.schedule([[("F", 0), ("B", 0)]] * 2)))
    for kind in ("forward", "backward", "all_reduce", "recv"):
        assert {colours[kind] for colours in drawn if kind in colours} == {figures.WORK[kind]}
    pipeline = run_of([], [Region(0, "F0", 0, 1), Region(0, "B0", 1, 3), Region(0, "W0", 3, 4)]).timeline()
    kinds = ("forward", "backward", "weight gradient")
    assert list(colours_of(pipeline).values())[:3] == [figures.WORK[kind] for kind in kinds]


def test_pictures_to_compare_share_their_time_axis():
    brief, long = run_of([], [Region(0, "a", 5.0, 7.0)]), run_of([], [Region(0, "a", 0.0, 6.0)])
    both = brief.timeline(beside=long, title=("a short one", "a long one"))
    assert both.span == 6 and [(bar.start, bar.end) for bar in both.bars] == [(0, 2), (0, 6)]
    assert [lane.heading for lane in both.lanes] == ["a short one", "", "a long one", ""]
    one, two = ([[("F", m) for m in range(count)]] for count in (5, 9))
    first, second = figures.schedule(one, beside=two), figures.schedule(two, beside=one)
    assert first.axes[0].get_xlim() == second.axes[0].get_xlim() != figures.schedule(one).axes[0].get_xlim()


def test_waiting_inside_a_region_is_not_drawn_as_compute():
    """DDP's all-reduce ends long after the last gradient is there, because another rank is late."""
    reduced = dataclasses.replace(call(0, 0, "all_reduce", 2, 9, is_async=True), waited=3)
    never = dataclasses.replace(call(0, 1, "all_reduce", 2, 2.5, is_async=True), waited=2.5)
    picture = run_of([reduced, never], [Region(0, "backward", 1, 9)]).timeline()
    assert ("waits", 2, 8) in bars(picture, 0) and len(bars(picture, 0)) == 4
    assert "the rank waits" in picture.legend


@pytest.mark.parametrize("title", ["who", "the bytes that each rank sends when DDP all-reduces one large bucket"])
@pytest.mark.parametrize("size", [2, 16, 17])
def test_the_title_of_a_heatmap_fits(size, title):
    heatmap = figures.traffic(Run(size, "spawn", "gloo", [], [], sends(size), 1.0), title)
    assert heatmap.texts[0].get_fontsize() > 9
    for picture in (heatmap, figures.Picture(2.5, 1, title)):
        picture.png()  # only now is it known how wide text is
        box = picture.texts[0].get_window_extent()
        assert box.x0 >= 0 and box.x1 <= picture.bbox.x1


def test_a_heatmap_can_show_what_collectives_imply():
    """In a ring of 3, each rank sends 4/3 of the 60 bytes of an all-reduce to its neighbour."""
    calls = [dataclasses.replace(call(rank, 0, "all_reduce", 0, 1), bytes=60, members=(0, 1, 2)) for rank in range(3)]
    run = Run(3, "spawn", "gloo", [], [], calls, 1.0)
    assert run.traffic().implied_bytes == [[0, 80, 0], [0, 0, 80], [80, 0, 0]]
    assert sorted(filter(None, texts(run.traffic().heatmap(implied=True).axes[0]))) == ["80"] * 3
    assert not any(texts(run.traffic().heatmap().axes[0]))


@pytest.mark.parametrize("world_size", [0, 9])
def test_too_many_ranks_are_refused(world_size):
    with pytest.raises(ValueError, match="1 to 8 ranks"):
        figures.collective("broadcast", world_size)


# ---- pictures of a run


def call(rank, index, op, start, end, is_async=False, peer=None):
    return Event(rank, index, op, "world", (0, 1), peer, 0, 8, "float32", (2,), "", is_async, start, end, "cell:1")


def run_of(events=(), regions=(), world_size=2):
    return Run(world_size, "spawn", "gloo", [], [], list(events), 9.0, list(regions))


def boxes(picture) -> list[tuple]:
    """(what, left, right, top, bottom) of all bars, in units of the axes."""
    seconds = fitting(SECONDS, picture.span)[1]
    return [
        (bar.what, round(bar.start / seconds, 6), round(bar.end / seconds, 6), bar.lane + bar.top,
         bar.lane + bar.top + bar.height)
        for bar in picture.bars
    ]  # fmt: skip


def bars(picture, lane) -> list[tuple]:
    """(what, start, end) of everything drawn in a lane, in units of the axis."""
    return sorted((what, left, right) for what, left, right, top, _ in boxes(picture) if lane <= top < lane + 1)


def names(picture) -> list[str]:
    """The labels of the lanes."""
    return [lane.name for lane in picture.lanes]


def written(picture) -> list[str]:
    """All text in it, but its data."""
    root = ElementTree.fromstring(picture.svg())
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


FORWARD, BACKWARD = "compute: forward", "compute: backward"
WHAT = (FORWARD, BACKWARD, "blocking: recv", "waits")
STEP = [
    Region(0, "forward 0", 0.010, 0.012),
    Region(0, "forward 1", 0.012, 0.014),
    Region(0, "backward", 0.016, 0.020),
    Region(1, "forward 0", 0.011, 0.015),
]
CALLS = [
    call(0, 0, "all_reduce", 0.017, 0.023, is_async=True),
    call(0, 1, "all_reduce", 0.018, None, is_async=True),
    call(1, 0, "recv", 0.014, 0.025, peer=0),
]


def test_a_timeline_has_a_lane_per_rank_with_compute_calls_and_bubbles():
    picture = figures.timeline(run_of(CALLS, STEP))
    assert names(picture) == ["rank 0", "rank 1"]
    assert "ms since the first bar" in written(picture) and picture.span == pytest.approx(0.015)
    assert bars(picture, 0) == [
        ("asynchronous: all_reduce", 7, 13),
        ("asynchronous: all_reduce", 8, 15),  # no rank waited for it, so it lasts to the end
        ("bubble", 4, 6),
        ("compute: backward", 6, 10),
        ("compute: forward", 0, 2),
        ("compute: forward", 2, 4),
    ]
    assert bars(picture, 1) == [
        ("blocking: recv", 4, 15),
        ("bubble", 0, 1),
        ("bubble", 5, 10),
        ("compute: forward", 1, 5),
        ("waits", 4, 15),
    ]
    assert list(picture.legend) == ["forward", "backward", "all_reduce", "recv", "the rank waits", "bubble"]
    assert {"forward 0", "forward 1", "backward", "recv", "What 2 ranks did"} <= set(written(picture))


def test_regions_of_a_kind_share_a_colour_and_waiting_is_striped():
    looks = {
        what: {bar.look for bar in figures.timeline(run_of(CALLS, STEP)).bars if bar.what == what} for what in WHAT
    }
    colours = {what: {look.colour for look in of} for what, of in looks.items()}
    assert len(colours[FORWARD]) == len(colours[BACKWARD]) == 1 and colours[FORWARD] != colours[BACKWARD]
    kinds = {what: one.kind for what, of in looks.items() for one in of}
    assert kinds["blocking: recv"] == "waits" and kinds["waits"] == "blocked" and kinds[BACKWARD] == "solid"


def test_concurrent_calls_and_nested_regions_do_not_hide_each_other():
    calls = [call(0, i, "all_reduce", 0.1 * i, 2.0, is_async=True) for i in range(6)]
    regions = [Region(0, "inner", 0.5, 0.6), Region(0, "outer", 0.0, 1.0)]
    drawn = {}
    for what, _, _, top, bottom in boxes(figures.timeline(run_of(calls, regions, 1))):
        drawn.setdefault(what, []).append((top, bottom))
    calls = sorted(drawn["asynchronous: all_reduce"])
    assert all(bottom < top for (_, bottom), (top, _) in zip(calls, calls[1:], strict=False))
    [(outer_top, outer_bottom)], [(top, bottom)] = drawn["compute: outer"], drawn["compute: inner"]
    assert bottom == pytest.approx(outer_bottom)
    assert outer_top < top < bottom < calls[0][0]


def test_a_label_is_shown_in_full_or_as_its_letter_and_number_or_not_at_all():
    regions = [Region(0, "forward 1", 0, 50), Region(0, "forward 22", 50, 54), Region(0, "F3", 54, 54.1)]
    regions += [Region(0, "forward 4", 55, 57), Region(0, "rest", 60, 100)]
    picture = figures.timeline(run_of([], regions, 1))
    assert [text for text in written(picture) if text[0] in "fFr2"][1:4] == ["forward 1", "F22", "rest"]
    shorts = {"forward 3": "F3", "B10": "B10", "step_12": "s12", "layer 2 backward 3": "", "update": "", "7": ""}
    assert {name: short(name) for name in shorts} == shorts


@pytest.mark.parametrize("span, unit", [(2.0, "s"), (2e-3, "ms"), (2e-6, "µs"), (0.0, "µs")])
def test_the_axis_uses_a_fitting_unit(span, unit):
    picture = figures.timeline(run_of([], [Region(0, "a", 1.0, 1.0 + span)]))
    assert any(text.startswith(f"{unit} since") for text in written(picture))


def test_a_timeline_of_one_region_shows_nothing_else():
    picture = figures.timeline(run_of(CALLS, STEP), within="backward")
    assert picture.span == pytest.approx(0.004)
    assert bars(picture, 1) == [("blocking: recv", 0, 4), ("bubble", 0, 4), ("waits", 0, 4)]
    assert "forward" not in picture.legend
    with pytest.raises(ValueError, match="no rank entered a region 'sideways'.*'forward 0', 'forward 1', 'backward'"):
        figures.timeline(run_of(CALLS, STEP), within="sideways")


def test_a_timeline_needs_regions_or_calls_and_says_so():
    picture = figures.timeline(run_of(CALLS))
    assert [what for what, _, _ in bars(picture, 1)] == ["blocking: recv"]
    with pytest.raises(ValueError, match="with region"):
        figures.timeline(run_of())


def test_sixteen_ranks_fit_on_a_screen():
    regions = [Region(rank, f"forward {i}", i, i + 0.9) for rank in range(16) for i in range(8)]
    calls = [call(rank, 0, "all_reduce", 1, 9) for rank in range(16)]
    picture = figures.timeline(run_of(calls, regions, 16))
    assert picture.lanes[-1].top + 120 < 720
    assert all(len(bars(picture, rank)) >= 9 for rank in range(16))
    assert written(picture).count("forward 7") == 16


def world_of(size, kinds):
    """`kinds` kinds of ranks, each a little slower than the one before; every rank has a different peer."""
    regions, calls = [], []
    for rank in range(size):
        t = 1 + rank * kinds // size / 1000
        regions += [Region(rank, "forward", 0, t), Region(rank, "backward", t, 3 * t)]
        calls += [call(rank, 0, "send", t, 3 * t, True, peer=(rank + 1) % size), call(rank, 1, "all_reduce", 3 * t, 9)]
    return run_of(calls, regions, size)


def test_many_equal_ranks_share_a_lane():
    picture = world_of(1024, kinds=3).timeline()
    assert names(picture) == ["ranks 0-341", "ranks 342-682", "ranks 683-1023"]
    assert [bars(picture, lane)[-2] for lane in range(3)] == [(FORWARD, 0, t) for t in (1, 1.001, 1.002)]
    assert len(boxes(picture)) == 3 * 5 + 2  # the first two finish a little earlier: a bubble
    assert names(world_of(16, kinds=1).timeline()) == [f"rank {rank}" for rank in range(16)]
    interleaved = run_of([call(rank, 0, "all_reduce", 0, 1 + rank % 8) for rank in range(64)], [], 64)
    assert names(interleaved.timeline())[0] == "ranks 0, 8, ... 56\n(8 alike)"


DIFFERENT = [{"op": "broadcast"}, {"start": 1.5}, {"end": 3.0}, {"is_async": True}, {"bytes": 16}]


@pytest.mark.parametrize("different", DIFFERENT)
def test_ranks_with_different_calls_do_not_share_a_lane(different):
    calls = [call(rank, 0, "all_reduce", 1, 2) for rank in range(20)]
    calls[7] = dataclasses.replace(calls[7], **different)
    assert names(run_of(calls, [], 20).timeline()) == ["ranks 0-6, 8-19", "rank 7"]


def test_ranks_share_a_lane_if_they_look_alike_in_the_time_shown():
    """They may differ outside it. A rank without any region has no bubbles, so it is different."""
    regions = [Region(rank, "later", 4 + rank % 2, 6) for rank in range(20) if rank != 7]
    picture = run_of([], [Region(0, "step", 0, 3), *regions], 20).timeline("step", ranks=range(1, 20))
    assert names(picture) == ["ranks 1-6, 8-19", "rank 7"]
    assert bars(picture, 0) == [("bubble", 0, 3)] and bars(picture, 1) == []


def test_a_timeline_of_some_ranks_keeps_the_times_and_colours_of_all():
    run = run_of(CALLS, STEP)
    every, some = run.timeline(), run.timeline(ranks=[1])
    assert names(some) == ["rank 1"] and bars(some, 0) == bars(every, 1)
    assert some.span == every.span
    colour = {bar.what: bar.look for bar in every.bars}
    assert all(bar.look == colour[bar.what] for bar in some.bars)
    assert "all_reduce" not in some.legend
    assert names(run.timeline(ranks=[-1, 0, 1])) == ["rank 1", "rank 0"]
    for ranks, said in ([0, 2], "there is no rank 2"), ([], "it got none"):
        with pytest.raises(ValueError, match=f"ranks 0 to 1; {said}"):
            run.timeline(ranks=ranks)


def test_a_timeline_of_too_many_lanes_shows_some_and_says_which():
    run = world_of(200, kinds=200)
    run.events.append(call(77, 2, "all_reduce", 8, 12, is_async=True))
    run.regions[2 * 33 + 1] = Region(33, "backward", 2.9, 3)  # it idles most of the time
    picture = run.timeline()
    assert {"rank 0", "rank 33", "rank 77", "rank 199"} <= set(names(picture))
    number, note = len(names(picture)), picture.lanes[0].note
    assert 60 <= number <= 64 and note.startswith(f"{number} of 200 different lanes")
    assert "finish (rank 77)" in note and "most (rank 33)" in note
    assert picture.lanes[-1].top + 120 < 1080
    assert not world_of(64, kinds=64).timeline().lanes[0].note


def test_thousands_of_bars_become_few():
    """Those that nobody could tell apart."""
    regions = [Region(0, f"forward {i}", i, i + 0.9) for i in range(5000)]
    calls = [call(0, i, "all_reduce", i + 0.5, i + 0.9, is_async=i % 2 == 0) for i in range(5000)]
    picture = figures.timeline(run_of(calls, regions, 1))
    assert len(boxes(picture)) == 5000 + 5000 + 2500 + 4999  # waits; bubbles
    told = json.loads(ElementTree.fromstring(picture.svg())[0].text)
    assert len(told["bars"]) / 6 < 3000
    assert any(word.endswith(" bars, the first forward 0") for word in told["words"])


def sends(size):
    return [call(rank, 0, "send", 0, 1, peer=(rank + 1) % size) for rank in range(size)]


@pytest.mark.parametrize("size, numbers", [(2, 2), (16, 16), (17, 0)])
def test_a_heatmap_has_numbers_up_to_sixteen_ranks(size, numbers):
    traffic = Run(size, "spawn", "gloo", [], [], sends(size), 1.0).traffic()
    picture = traffic.heatmap()
    assert texts(picture.axes[0]).count("8") == numbers
    assert picture.get_figwidth() * DPI < NOTEBOOK
    for run in (Run(size, "spawn", "gloo", [], [], events, 1.0) for events in (sends(size), [])):
        run.traffic().heatmap().png()


def test_the_heatmap_of_a_large_world_loses_no_message():
    size = 700
    [panel, scale] = Run(size, "virtual", "nccl", [], [], sends(size), 1.0).traffic().heatmap().axes
    [image] = panel.images
    cells = image.get_array().filled(0)
    assert cells.shape == (234, 234)  # three ranks each
    assert set(cells.nonzero()[0]) == set(range(234)) and cells[233, 0] == cells[0, 0] == 8 and cells[0, 1] == 8
    assert cells[0, 2] == 0 and image.get_extent() == [-0.5, 701.5, 701.5, -0.5]
    assert panel.get_xticks().tolist() == list(range(0, size, 128))
    assert "3 x 3 ranks" in scale.get_ylabel()


def test_live_bytes_has_a_lane_with_the_peak_for_each_rank_that_tracked():
    samples = [(1.0, "parameters", 4000), (1.0, "activations", 0), (1.5, "activations", 2000), (2.0, "activations", 0)]
    picture = Memory([[MemoryNote("cpu", samples, 6000)], [], [MemoryNote("cpu", samples[:1], 4000)]]).figure()
    assert [panel.get_ylabel() for panel in picture.axes] == ["rank 0", "rank 2"]
    assert [texts(panel) for panel in picture.axes] == [["peak\n6 kB"], ["peak\n4 kB"]]
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["parameters", "activations"]
    parameters, activations = picture.axes[0].collections
    assert parameters.get_datalim(picture.axes[0].transData).ymax == 4
    assert activations.get_datalim(picture.axes[0].transData).ymax == 6


def test_live_bytes_shows_a_peak_of_no_duration():
    samples = [(0.0, "other", 1000), (1.0, "other", 3000), (1.0, "other", 2000), (2.0, "other", 0)]
    [panel] = Memory([[MemoryNote("virtual", samples, 3000)]]).figure().axes
    outline = panel.lines[0]
    assert outline.get_xydata().tolist() == [[0, 1], [1, 3], [1, 2], [2, 0]]


def test_live_bytes_of_many_ranks_groups_equal_ones_and_keeps_the_extremes():
    def notes(peak, at=1.0):
        samples = [(0.0, "communication", 0), (at, "communication", peak), (2.0, "communication", 0)]
        return [MemoryNote("cpu", samples, peak)]

    picture = Memory([notes(1000 + 1000 * (rank >= 512), at=0.5 + rank // 768) for rank in range(1024)]).figure()
    assert [panel.get_ylabel() for panel in picture.axes] == ["ranks 0-511", "ranks 512-767", "ranks 768-1023"]
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["communication"]
    peaks = [1000 + rank for rank in range(50)]
    peaks[8], peaks[21] = 5000, 500
    picture = Memory([notes(peak) for peak in peaks]).figure()
    assert len(picture.axes) == 16 and {"rank 8", "rank 21"} < {panel.get_ylabel() for panel in picture.axes}
    assert any("16 of 50 different lanes" in text and "(rank 8) and" in text for text in texts(picture))


def test_importing_utils_imports_neither_matplotlib_nor_torch():
    code = "import sys, utils; assert not {'matplotlib', 'torch'} & set(sys.modules), 'too early'"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- data parallelism


def words_in(picture) -> list[str]:
    return [text.get_text() for panel in picture.axes for text in panel.texts]


def test_a_data_parallel_step_shows_the_rows_of_each_rank():
    words = words_in(figures.data_parallel_step([3, 1, 0]))
    assert {"0 to 2", "3", "none", "rank 2"} <= set(words)


def test_buckets_are_drawn_under_their_parameters_with_their_bytes():
    words = words_in(figures.buckets([[2, 1], [0]], [40, 100, 300]))
    assert {"bucket 0", "400 bytes", "bucket 1", "40 bytes"} <= set(words)


def test_overlap_shows_how_much_is_exposed():
    words = words_in(figures.overlap({"one": ([10.0], [4.0]), "two": ([5.0, 10.0], [2.5, 2.5])}, backward=10.0))
    assert {"4 ms exposed", "2.5 ms exposed"} <= set(words)


def test_only_the_batch_norm_is_framed_across_ranks():
    batch, layer = figures.norms(world_size=2, rows=3, columns=4).axes
    assert batch.patches[-1].get_height() > 5 and layer.patches[-1].get_height() < 1


def test_intervals_have_a_bar_each_and_a_hollow_dot_outside():
    (panel,) = figures.intervals({"in": (1.0, 1.2, 1.5), "out": (1.0, 2.0, 1.5)}, "two", "seconds").axes
    assert [(bar.get_x(), bar.get_width()) for bar in panel.patches] == [(1.0, 0.5), (1.0, 0.5)]
    assert [(line.get_xdata()[0], line.get_fillstyle()) for line in panel.lines] == [(1.2, "full"), (2.0, "none")]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["in", "out"]
