"""Pixels of scenes, drawn a batch at a time with the array functions that numpy and torch share; PNG files.

Shapes are signed distances in pixels, so that edges are smooth; digits are a 5 x 7 font. Training draws with
torch on its device, tests and benchmarks with numpy.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tools.eyes.scenes import DIGIT, SIZE, THINGS_MAX, Scene

PATCH = 8
GRID = SIZE // PATCH
_COVERED = 0.25  # of a patch: more than this, and the thing is what the patch shows
_FONT = (
    "01110100011001110101110011000101110",
    "00100011000010000100001000010001110",
    "01110100010000100010001000100011111",
    "11111000100010000010000011000101110",
    "00010001100101010010111110001000010",
    "11111100001111000001000011000101110",
    "00110010001000011110100011000101110",
    "11111000010001000100010000100001000",
    "01110100011000101110100011000101110",
    "01110100011000101111000010001001100",
)
GLYPHS = np.array([[int(bit) for bit in glyph] for glyph in _FONT], np.float32).reshape(10, 7, 5)

Array = Any  # of numpy or of torch


def columns(scenes: Sequence[Scene]) -> tuple[np.ndarray, np.ndarray]:
    """Scenes as arrays: things [n, THINGS_MAX, 9] (kind −1 where there is none), backgrounds [n, 7]."""
    things = np.zeros((len(scenes), THINGS_MAX, 9), np.float32)
    things[:, :, 0] = -1
    things[:, :, 7] = 1  # a radius to divide by
    backgrounds = np.zeros((len(scenes), 7), np.float32)
    for row, scene in enumerate(scenes):
        backgrounds[row] = (*scene.top, *scene.bottom, scene.noise)
        for column, thing in enumerate(scene.things):
            things[row, column] = (
                thing.kind,
                thing.colour,
                *thing.rgb,
                thing.x,
                thing.y,
                thing.radius,
                thing.angle,
            )
    return things, backgrounds


def draw(xp: Any, things: Array, backgrounds: Array, noise: Array, glyphs: Array) -> tuple[Array, Array]:
    """Pictures [n, SIZE, SIZE, 3] of 0 to 255 (whole numbers), and what each patch shows.

    The latter are kind + 1 and colour + 1 of the thing that covers the patch, 0 for the background:
    [n, GRID, GRID, 2]. `noise` is standard normal, of the pictures' shape; `xp` is numpy or torch, and all
    arrays are its own.
    """
    line = xp.arange(SIZE, **_placed(things)) + 0.5
    x, y = line[None, None, :], line[None, :, None]
    down = (line / SIZE)[None, :, None, None]
    top, bottom = backgrounds[:, None, None, 0:3], backgrounds[:, None, None, 3:6]
    picture = top + (bottom - top) * down + 0 * x[..., None]
    shown = xp.zeros((len(things), GRID, GRID, 2), **_placed(things))
    for column in range(THINGS_MAX):
        if xp is np and np.all(things[:, column, 0] < 0):
            continue
        thing = things[:, column, :, None, None]
        alpha = _alpha(xp, thing, x, y, glyphs)
        picture = picture + (things[:, column, None, None, 2:5] - picture) * alpha[..., None]
        cover = alpha.reshape(-1, GRID, PATCH, GRID, PATCH).mean((2, 4))[..., None]
        shown = xp.where(cover > _COVERED, things[:, column, None, None, 0:2] + 1, shown)
    picture = picture + noise * backgrounds[:, None, None, 6:7]
    return xp.clip(xp.round(picture), 0, 255), shown


def _placed(like: Array) -> dict[str, Any]:
    """Keyword arguments that put a new array where `like` is."""
    return {"dtype": like.dtype} | ({} if isinstance(like, np.ndarray) else {"device": like.device})


def _alpha(xp: Any, thing: Array, x: Array, y: Array, glyphs: Array) -> Array:
    """How much of each pixel one thing of each scene covers: [n, SIZE, SIZE]."""
    kind, radius, angle = thing[:, 0], thing[:, 7], thing[:, 8]
    across, along = x - thing[:, 5], y - thing[:, 6]
    u = across * xp.cos(angle) + along * xp.sin(angle)
    v = along * xp.cos(angle) - across * xp.sin(angle)
    distance = xp.where(kind == 0, _distance(xp, 0, u, v, radius), u * 0 + 1e3)
    for shape in range(1, DIGIT):
        distance = xp.where(kind == shape, _distance(xp, shape, u, v, radius), distance)
    alpha = xp.clip(0.5 - distance, 0, 1)
    cell = radius * 2 / 7
    place_x, place_y = xp.floor(u / cell + 2.5), xp.floor(v / cell + 3.5)
    inside = (place_x >= 0) & (place_x < 5) & (place_y >= 0) & (place_y < 7) & (kind >= DIGIT)
    digit = _whole(xp.clip(kind - DIGIT + 0 * u, 0, 9))
    lit = glyphs[digit, _whole(xp.clip(place_y, 0, 6)), _whole(xp.clip(place_x, 0, 4))]
    return xp.where(inside, lit, alpha)


def _whole(values: Array) -> Array:
    return values.astype(np.int64) if isinstance(values, np.ndarray) else values.long()


def _distance(xp: Any, shape: int, u: Array, v: Array, r: Array) -> Array:
    """Signed distance to the edge of a shape, negative inside; shapes in the order of `scenes.SHAPES`."""
    across, along = xp.abs(u), xp.abs(v)
    if shape == 0:
        return xp.sqrt(u * u + v * v) - r
    if shape == 1:
        return xp.maximum(across, along) - 0.85 * r
    if shape == 2:
        return xp.maximum(v, 0.866 * across - 0.5 * v) - 0.5 * r
    if shape == 3:
        return (1.35 * across + 0.75 * along - r) * 0.65
    if shape == 4:
        upright = xp.maximum(across - 0.28 * r, along - r)
        return xp.minimum(upright, xp.maximum(along - 0.28 * r, across - r))
    return xp.abs(xp.sqrt(u * u + v * v) - 0.76 * r) - 0.22 * r


def picture(scene: Scene, seed: int = 0) -> np.ndarray:
    """One scene with numpy: [SIZE, SIZE, 3] bytes."""
    things, backgrounds = columns([scene])
    noise = np.random.default_rng(seed).standard_normal((1, SIZE, SIZE, 3)).astype(np.float32)
    pixels, _ = draw(np, things, backgrounds, noise, GLYPHS)
    drawn: np.ndarray = pixels[0].astype(np.uint8)
    return drawn


def png(pixels: np.ndarray) -> bytes:
    """A PNG file of [height, width, 3] bytes."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + width * 3), np.uint8)  # every row begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes())) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
