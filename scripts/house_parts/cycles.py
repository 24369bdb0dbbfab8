"""Finds the cycles of the import graph: its strongly connected components of more than one module."""


def components(edges):
    """Returns the components of more than one node of a graph {(source, target): edge}, largest first (Tarjan, iterative)."""
    following = {}
    for source, target in edges:
        following.setdefault(source, []).append(target)
        following.setdefault(target, [])
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for start in sorted(following):
        if start in index:
            continue
        work = [(start, iter(sorted(following[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(following[target]))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(sorted(stack[at:]))
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
    return sorted((nodes for nodes in found if len(nodes) > 1), key=lambda nodes: (-len(nodes), nodes))


def shortest_cycle(edges, nodes):
    """Returns a shortest cycle in the component, as a list of nodes that begins and ends with the same node."""
    inside = set(nodes)
    following = {node: sorted(t for s, t in edges if s == node and t in inside) for node in nodes}
    best = None
    for start in nodes:
        before = {start: None}
        queue = [start]
        for node in queue:
            if start in following[node]:
                cycle = [start]
                while node is not None:
                    cycle.append(node)
                    node = before[node]
                cycle.reverse()
                if best is None or len(cycle) < len(best):
                    best = cycle
                break
            for target in following[node]:
                if target not in before:
                    before[target] = node
                    queue.append(target)
    return best
