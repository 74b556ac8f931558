"""A class name exists once in the whole repository. Private names begin with an underscore and are their file's own."""

import ast

from tests.unit.sources import python_files, statements, tree


def class_names(module: ast.Module) -> list[str]:
    """Public classes of a file, nested ones and those inside functions included."""
    found = [node.name for node in statements(module.body) if isinstance(node, ast.ClassDef)]
    return [name for name in found if not name.startswith("_")]


def places_of(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for path, module in modules.items():
        for name in class_names(module):
            places.setdefault(name, []).append(path)
    return places


def test_a_class_name_exists_once_in_the_whole_repository() -> None:
    places = places_of({path: tree(path) for path in python_files()})
    twice = [f"{name}: {', '.join(paths)}" for name, paths in sorted(places.items()) if len(paths) > 1]
    assert not twice, f"{len(twice)} class names exist more than once:\n" + "\n".join(twice)


def test_the_search_finds_nested_classes_and_leaves_private_ones_alone() -> None:
    module = ast.parse("class Here: pass\nif 1:\n    def f():\n        class Here: pass\nclass _Own: pass\n")
    assert places_of({"a.py": module, "b.py": module}) == {"Here": ["a.py", "a.py", "b.py", "b.py"]}
