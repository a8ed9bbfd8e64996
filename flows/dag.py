"""The stage list of a workspace, in the order in which a run takes it. dvc.yaml is the only DAG; nothing here knows a stage by name."""

from pathlib import Path

from ratchet.errors import RatchetError


def stage_names(workspace: Path) -> list[str]:
    """Names as DVC knows them (`harvest@1`), each after all that it depends on; ties go by place in dvc.yaml, so rounds stay in order.

    Raises RatchetError where DVC cannot read the graph (a cycle, two stages with one out, a broken dvc.yaml, no DVC project).
    """
    import networkx
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(workspace)) as repo:
            graph = repo.index.graph  # an edge goes from a stage to what it depends on; nodes are in dvc.yaml's order
            place = {stage: number for number, stage in enumerate(graph.nodes)}
            ordered = networkx.lexicographical_topological_sort(graph.reverse(), key=place.__getitem__)
            return [stage.name for stage in ordered]  # `addressing` would depend on the current folder
    except DvcException as error:
        reason = " ".join(str(error).split())
        raise RatchetError(f"{workspace / 'dvc.yaml'}: DVC cannot read its stages ({reason}); correct it there") from None


def split_name(stage: str) -> tuple[str, str | None]:
    """`harvest@1` → ("harvest", "1"); `seal` → ("seal", None)."""
    name, _, key = stage.partition("@")
    return name, key or None
