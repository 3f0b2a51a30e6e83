"""Draws what pipeline stages did with one prompt, policies one under another, on one scale of time."""

LEFT, WIDTH, ROW, GAP, TITLE, AXIS, FOOT = 70, 860, 24, 4, 24, 22, 14
SHADES = ("#3b6ea8", "#7fa8d4")  # neighbours differ
INK, GREY = "#222", "#888"


def text(x, y, s, anchor="start", size=12, fill=INK):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{s}</text>'


def tick_step(seconds):
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50):
        if seconds / step <= 10:
            return step
    return 100


def axis(y, seconds, scale):
    step, out, i = tick_step(seconds), [], 0
    while i * step <= seconds:
        x = LEFT + i * step * scale
        out.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{y + 4:.1f}" stroke="{GREY}"/>')
        out.append(text(x, y + 16, f"{i * step:g} s", "middle", 10, GREY))
        i += 1
    return out


def lane(steps, stage, y, scale):
    """One stage: a box a step, its tokens where there is room."""
    out = [text(LEFT - 6, y + ROW / 2 + 4, f"stage {stage}", "end", 11),
           f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}" fill="#f4f4f4"/>']
    mine = sorted(s for s in steps if s[0] == stage)
    for i, (_, begin, end, tokens, _) in enumerate(mine):
        x, w = LEFT + begin * scale, max((end - begin) * scale, 0.5)
        out.append(f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="{ROW}" fill="{SHADES[i % 2]}"/>')
        if w > 7 * len(str(tokens)):
            out.append(text(x + w / 2, y + ROW / 2 + 4, tokens, "middle", 10, "#fff" if i % 2 == 0 else INK))
    return out


def draw(rows, tokens):
    """rows: (title, [(stage, begin, end, tokens, history)]), seconds. The SVG as a string."""
    last = max(s[2] for _, steps in rows for s in steps)
    scale = WIDTH / last
    out, y = [], 18
    out.append(text(LEFT, y, f"A prompt of {tokens} tokens on two stages; numbers are tokens of a chunk", size=13))
    y += 8
    for title, steps in rows:
        stages = sorted({s[0] for s in steps})
        took = max(s[2] for s in steps)
        out.append(text(LEFT, y + TITLE - 7, f"{title}: {took:.2f} s", size=12))
        y += TITLE
        for stage in stages:
            out += lane(steps, stage, y, scale)
            y += ROW + GAP
        x = LEFT + took * scale
        top = y - len(stages) * (ROW + GAP)
        out.append(f'<line x1="{x:.1f}" y1="{top - 3}" x2="{x:.1f}" y2="{y - GAP + 3}" stroke="#c03030" '
                   'stroke-width="1.5"/>')
    out += axis(y, last, scale)
    height = y + AXIS + FOOT
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}" '
            f'viewBox="0 0 {LEFT + WIDTH + 20} {height}" font-family="sans-serif">\n'
            f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(out) + "\n</svg>\n")
