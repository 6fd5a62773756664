"""Names and colors of the classes."""

SPLITS = ('training', 'validation')

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring', 'cross', 'crescent', 'heart')
PALETTE = [
    (230, 25, 75),
    (60, 180, 75),
    (255, 225, 25),
    (0, 130, 200),
    (245, 130, 48),
    (145, 30, 180),
    (70, 240, 240),
    (240, 50, 230),
]

# The semantic PNGs hold 0 = unlabeled (ADE20K's "other", which never occurs here),
# 1 = background and 2.. = CLASSES: reduce_zero_label=True turns them into indices of these.
SEG_CLASSES = ('background', *CLASSES)
SEG_PALETTE = [(0, 0, 0), *PALETTE]
