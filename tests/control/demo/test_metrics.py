"""Prometheus text, read back."""

from framegate.control.demo.metrics import Metrics

TEXT = """# HELP framegate_frame_count_total Frames.
# TYPE framegate_frame_count_total counter
framegate_frame_count_total{framegate_side="upstream",network_io_direction="transmit"} 40.0
framegate_frame_count_total{framegate_side="upstream",network_io_direction="receive"} 3
framegate_frame_count_total{framegate_side="downstream",network_io_direction="transmit"} 2e3
framegate_frame_rejected_total{framegate_reason="frame_too_large",other="a \\"b\\", c"} 1
framegate_frame_rejected_total{framegate_reason="negative_size"} 0
"""


def test_sums_over_the_samples_that_have_the_labels() -> None:
    metrics = Metrics(TEXT)
    assert metrics.sum("framegate_frame_count_total", framegate_side="upstream") == 43
    assert metrics.sum("framegate_frame_count_total", framegate_side="upstream", network_io_direction="transmit") == 40
    assert (metrics.sum("framegate_frame_count_total"), metrics.sum("not_there")) == (2043, 0)
    assert metrics.by("framegate_frame_rejected_total", "framegate_reason") == {"frame_too_large": 1}, "zeroes are left out"
