"""Windows of local attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """How maps are cut into windows for local attention; sizes in tokens.

    Args:
        height (int, optional): None: that of the map, which makes vertical stripes.
        width (int, optional): None: that of the map, which makes horizontal stripes.
        shift (bool): move the windows by half of their size (rounded down), along each axis where
            the map is larger than a window.
        clip (bool): make a window no larger than the map, instead of padding the map.
    """
    height: int | None
    width: int | None
    shift: bool = False
    clip: bool = False

    def cut(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Height, width and shifts of the windows on maps of a size."""
        h, w = self.height or height, self.width or width
        if self.clip:
            h, w = min(h, height), min(w, width)
        if not self.shift:
            return h, w, 0, 0
        return h, w, h // 2 if height > h else 0, w // 2 if width > w else 0
