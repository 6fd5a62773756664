"""Windows of local attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """How maps are cut into windows for local attention; sizes in tokens.

    Args:
        height (int, optional): height of a window. None: that of the map (vertical stripes).
        width (int, optional): width of a window. None: that of the map (horizontal stripes).
        shift (bool): shift the windows by half of their size, rounded down, along each axis where
            the map is larger than a window.
        clip (bool): clip a window to the size of the map, instead of padding the map.
    """

    height: int | None
    width: int | None
    shift: bool = False
    clip: bool = False

    def cut(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Height, width, vertical and horizontal shift of the windows on a height x width map."""
        h, w = self.height or height, self.width or width
        if self.clip:
            h, w = min(h, height), min(w, width)
        if not self.shift:
            return h, w, 0, 0
        return h, w, h // 2 if height > h else 0, w // 2 if width > w else 0
