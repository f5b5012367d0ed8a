"""The page's files, as they are written."""

import re

from conftest import PAGE, modules


def test_modules_can_be_put_into_one_script():
    """One scope: no name twice, no cycle, only lines that can be left out."""
    names, imports = [], {}
    for file, text in modules().items():
        assert len(text.splitlines()) < 300, file
        imports[file] = re.findall(r"^import .* from '\./(.*)';$", text, re.M)
        assert len(imports[file]) == len(re.findall(r"^import\b", text, re.M)), file
        assert not re.search(r"\bimport\(|innerHTML|insertAdjacentHTML|document\.write", text), file
        found = re.findall(r"^(?:async )?(?:function\*?|class|const|let) (\w+|[\[{].*?[\]}])", text, re.M)
        names += [name for one in found for name in re.findall(r"\w+", one)]
    assert sorted(names) == sorted(set(names))
    seen = []
    for file, needed in imports.items():
        assert set(needed) <= set(seen), file
        seen.append(file)
    assert set(PAGE.glob("*.js")) == {PAGE / file for file in imports}


def test_the_library_is_as_it_came_and_carries_its_licence():
    licence = (PAGE / "vendor/openseadragon.LICENSE.txt").read_text("utf-8").strip()
    library = (PAGE / "vendor/openseadragon.min.js").read_text("utf-8")
    assert library.startswith(f"/*!\n{licence}\n*/\n") and "sourceMappingURL" not in library
