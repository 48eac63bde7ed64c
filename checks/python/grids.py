"""Smaller walks through grids of parameters that are too large to walk whole."""
import itertools


def pairwise(**axes):
    """A few points of the product of the axes, such that each pair of values of any two axes is in at least one. Deterministic: the first
    pair not met yet is taken up, and the other axes get, in turn, the value that meets most new pairs, the first of equals."""
    names = list(axes)
    ranges = [range(len(axes[name])) for name in names]
    left = {(a, x, b, y) for a, b in itertools.combinations(range(len(names)), 2) for x in ranges[a] for y in ranges[b]}
    ordered = sorted(left, key=lambda pair: (-len(ranges[pair[0]]) * len(ranges[pair[2]]), pair))
    points = []
    for start in ordered:
        if start not in left:
            continue
        point = {start[0]: start[1], start[2]: start[3]}
        for axis in sorted(set(range(len(names))) - set(point), key=lambda axis: -len(ranges[axis])):
            point[axis] = max(ranges[axis], key=lambda x: (gain(left, point, axis, x), -((x - len(points)) % len(ranges[axis]))))
        left -= set(pairs(point))
        points.append({name: axes[name][point[axis]] for axis, name in enumerate(names)})
    return points


def pairs(point):
    return [(a, point[a], b, point[b]) for a, b in itertools.combinations(sorted(point), 2)]


def gain(left, point, axis, value):
    return sum(((a, point[a], axis, value) if a < axis else (axis, value, a, point[a])) in left for a in point)


def whole(**axes):
    """All points of the product."""
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def names(points):
    """An id for each point, for pytest."""
    return ["-".join(f"{key}{show(value)}" for key, value in point.items()) for point in points]


def show(value):
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return getattr(value, "__name__", str(value).replace("torch.", ""))
