"""A copy of a GGUF file whose matrices are quantised: a cheap draft for the target that the file holds.

    python experiments/quantised_gguf.py FILE.gguf COPY.gguf [TYPE]

TYPE is one of the package's own quantisations: Q8_0 (default), Q4_0, … Norms and biases stay as they are.
"""

import sys
from pathlib import Path

import gguf


def main(file: Path, copy: Path, kind: str) -> None:
    """Write the copy of `file`."""
    read = gguf.GGUFReader(file)
    wanted = gguf.GGMLQuantizationType[kind]
    architecture = read.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(copy, architecture)
    for name, field in read.fields.items():
        if name == "general.architecture" or name.startswith("GGUF."):
            continue
        inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in read.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
            continue
        writer.add_tensor(tensor.name, gguf.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "Q8_0")
