"""Makes the files of this directory, with NumPy's own writer. Run it here: python make.py

Element i, counted in C order of the logical array, is value(dtype, i) below; tests/golden.rs has the same rule.
"""

import io
import zipfile

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

SHAPE = (2, 3, 4)


def value(dtype, count):
    index = np.arange(count)
    if dtype == "b1":
        return index % 3 == 0
    if dtype.startswith("u"):
        return (index * 5).astype(dtype)
    if dtype.startswith("i"):
        return (index * 5 - 60).astype(dtype)
    if dtype == "bf16":
        return (index / 4 - 2).astype(ml_dtypes.bfloat16)
    return (index / 4 - 2).astype(dtype)


def array(dtype, shape=SHAPE):
    return value(dtype, int(np.prod(shape))).reshape(shape)


def write(name, array, version=None):
    with open(name, "wb") as file:
        np.lib.format.write_array(file, array, version=version)


for dtype in "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 bf16".split():
    write(f"{dtype}_little.npy", array(dtype))
for dtype in "i2 i4 i8 u2 u4 u8 f2 f4 f8".split():
    write(f"{dtype}_big.npy", array(dtype).astype(">" + dtype))

write("f4_fortran.npy", np.asfortranarray(array("f4")))
write("f4_fortran_big.npy", np.asfortranarray(array("f4").astype(">f4")))
write("b1_fortran.npy", np.asfortranarray(array("b1")))
write("f4_fortran_1d.npy", np.asfortranarray(array("f4", (5,))))
write("f4_fortran_row.npy", np.asfortranarray(array("f4", (1, 5))))
# The buffer is in C order for the axes reversed, so NumPy saves it with fortran_order.
write("f4_fortran_4d.npy", np.ascontiguousarray(array("f4", (2, 3, 4, 5)).T).T)
write("f4_scalar.npy", array("f4", ()))
write("f4_empty.npy", array("f4", (2, 0, 4)))
write("f4_v2.npy", array("f4"), (2, 0))
write("f4_v3.npy", array("f4"), (3, 0))

arrays = {
    "q": array("f4"),
    "mask": array("b1"),
    "k": np.asfortranarray(array("f8").astype(">f8")),
    "v/heads": array("f2"),
    "scale": array("f4", ()),
}
np.savez("stored.npz", **arrays)
np.savez_compressed("deflated.npz", **arrays)
save_file(
    {name: array(dtype) for name, dtype in [("q", "f4"), ("k", "bf16"), ("mask", "b1"), ("v", "f2")]},
    "python.safetensors",
    {"made": "by python"},
)

# To be refused.
write("refused_complex.npy", np.zeros(2, "c8"))
write("refused_text.npy", np.array(["a", "bc"]))
write("refused_date.npy", np.zeros(2, "M8[s]"))
write("refused_long_double.npy", np.zeros(2, np.longdouble))
write("refused_structured.npy", np.zeros(2, [("a", "<f4"), ("b", "<i4")]))
write("refused_object.npy", np.array([None, 1], dtype=object))
write("refused_void.npy", np.zeros(2, "V3"))


def archive(name, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(name, "w", compression) as file:
        for member, content in members:
            file.writestr(zipfile.ZipInfo(member), content, compression)


buffer = io.BytesIO()
np.save(buffer, array("f4"))
archive("refused_member.npz", [("q.npy", buffer.getvalue()), ("readme.txt", b"hello")])
archive("refused_bzip2.npz", [("q.npy", buffer.getvalue())], zipfile.ZIP_BZIP2)
# As if encrypted: the flag is set in the local and in the central header.
archive("refused_encrypted.npz", [("q.npy", buffer.getvalue())])
with open("refused_encrypted.npz", "r+b") as file:
    content = bytearray(file.read())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    file.seek(0)
    file.write(content)
