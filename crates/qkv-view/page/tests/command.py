"""The command at work: files for it, its server asked, its pictures read."""

import http.cookiejar
import json
import struct
import subprocess
import urllib.error
import urllib.parse
import urllib.request
import zlib

import numpy as np

TYPES = {"float32": "F32", "bool": "BOOL"}


def write_safetensors(path, arrays, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, array in arrays.items():
        body = np.ascontiguousarray(array).tobytes()
        place = [len(data), len(data) + len(body)]
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": array.shape, "data_offsets": place}
        data += body
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def write_model(path, model):
    """A file of what a mock's model has: a recording, or arrays q, k and v and a mask."""
    arrays = {}
    for layer in model.layers:
        prefix = "" if layer is None else f"layers.{layer}."
        heads = [
            [model.vectors(layer, head, batch) for head in range(model.heads)]
            for batch in range(model.batches)
        ]
        for at, name in enumerate("qkv"):
            arrays[prefix + name] = np.array([[one[at] for one in row] for row in heads], np.float32)
    masks = [model.mask(head) for head in range(model.heads)]
    if masks[0] is not None:
        arrays["mask"] = np.array(masks)
    metadata = {"causal": "true"} if model.causal else {}
    if model.words:
        metadata["tokens"] = json.dumps(model.words)
    write_safetensors(path, arrays, metadata)


class Served:
    """`qkv view` of a file, and questions to it."""

    def __init__(self, qkv, path):
        self.path = path
        arguments = [qkv, "view", path, "--no-open"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://"))
        self.url = address.split("?")[0]
        self.jar = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        self.opener.open(address).close()

    @property
    def cookies(self):
        """As a browser is given them."""
        return [{"name": one.name, "value": one.value, "url": self.url} for one in self.jar]

    def ask(self, path, parameters):
        """Status, kind, bytes: as the mock's `Api.answer`."""
        given = {name: value for name, value in parameters.items() if value is not None}
        url = f"{self.url}api/{path}?{urllib.parse.urlencode(given)}"
        try:
            with self.opener.open(url, timeout=60) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.headers["Content-Type"], refused.read()

    def json(self, path, **parameters):
        status, kind, body = self.ask(path, parameters)
        assert (status, kind) == (200, "application/json"), (path, parameters, body)
        return json.loads(body)

    def picture(self, path, **parameters):
        status, kind, body = self.ask(path, parameters)
        assert (status, kind) == (200, "image/png"), (path, parameters, body)
        return Picture(body)

    def close(self):
        self.process.kill()
        self.process.communicate()


class Picture:
    """A PNG with a palette: the colours, and which of them each pixel has."""

    def __init__(self, png):
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        chunks, at = {}, 8
        while at < len(png):
            size, kind = struct.unpack(">I4s", png[at : at + 8])
            body = png[at + 8 : at + 8 + size]
            assert zlib.crc32(kind + body) == struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0]
            chunks[kind] = chunks.get(kind, b"") + body
            at += 12 + size
        width, height, *how = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
        assert how == [8, 3, 0, 0, 0]
        rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
        assert not rows[:, 0].any(), "a filter"
        self.levels = rows[:, 1:].astype(int)
        self.palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3).astype(int)
