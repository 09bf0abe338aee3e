"""Write a GGUF file from a plan: header first, then the tensors as they come, the final name last.

Implements `hf2q.types.Writer`. The bytes go to a hidden file beside the target, which takes the target's name only
when everything is on disk; whatever goes wrong before, nothing is left.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hf2q.errors import WriteError
from hf2q.formats.digest import WrittenDigest
from hf2q.formats.gguf.encode import alignment_of, encode_header
from hf2q.formats.gguf.layout import padded
from hf2q.formats.temporary import create_unfinished, hint_for
from hf2q.types import Plan, TensorPlan

if TYPE_CHECKING:
    from hf2q.types import Bytes

log = logging.getLogger(__name__)


class GgufWriter:
    """Writes the file `path` that `plan` describes; see `hf2q.types.Writer` for the order of calls.

    An existing file is replaced in one step at `close`; whether it may be is the caller's decision. The disk must
    have room for the whole file before the first byte is written.

    Errors: ContractError for a plan that no GGUF file can hold; WriteError for everything about the disk, for tensors
    out of order and for wrong sizes. After any of them nothing remains of the unfinished file.
    """

    def __init__(self, path: str, plan: Plan) -> None:
        self._path = path
        self._target = _follow_links(path)
        self._tensors = plan.tensors
        self._alignment = alignment_of(plan.metadata)
        header = encode_header(plan.metadata, plan.tensors)
        self._total = len(header) + sum(padded(tensor.nbytes, self._alignment) for tensor in plan.tensors)
        self._index = 0
        self._done = 0
        self._folder = self._target.parent
        self._check_target()
        self._descriptor: int | None
        self._descriptor, self._temporary = self._create()
        self._finished = False
        self._pending = True
        self._header = header
        self._hash: WrittenDigest | None = None
        self._sha256 = ""
        try:
            self._put(memoryview(header))
        except BaseException:
            self.abort()
            raise

    def start_hash(self) -> None:
        """Hash the file while it is written, for `hashes`; to be called before the first `write`."""
        self._hash = WrittenDigest()
        self._hash.update(self._header)

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the finished file by its path, in hexadecimal digits; nothing unless `start_hash` was called."""
        return {self._path: self._sha256} if self._sha256 else {}

    def write(self, name: str, data: Bytes) -> None:
        """Append `data`, C-contiguous uint8 of any shape, to the tensor `name`.

        A tensor may come in several pieces; the next begins when it is complete.
        """
        tensor = self._current(name)
        view = memoryview(cast("Any", data))
        if view.format != "B" or not view.c_contiguous:
            layout = "contiguous" if view.c_contiguous else "strided"
            raise self._refuse(f"tensor {name!r} gets {layout} {view.format!r} values, expected contiguous uint8")
        view = view.cast("B") if view.nbytes else memoryview(b"")
        if self._done + len(view) > tensor.nbytes:
            raise self._refuse(f"tensor {name!r} gets {self._done + len(view)} bytes, expected {tensor.nbytes}")
        if not len(view):
            return
        self._put(view)
        self._done += len(view)
        if self._done == tensor.nbytes:
            self._put(memoryview(bytes(padded(tensor.nbytes, self._alignment) - tensor.nbytes)))

    def close(self) -> None:
        """Check that every tensor is complete, flush to disk, and give the file its name."""
        self.finish()
        self.publish()

    def finish(self) -> None:
        """The first half of `close`: check that every tensor is complete, and flush to disk under the hidden name."""
        descriptor = self._open()
        for tensor in self._tensors[self._index :]:
            if self._done < tensor.nbytes:
                raise self._refuse(f"tensor {tensor.name!r} has {self._done} bytes, expected {tensor.nbytes}")
            self._done = 0
        try:
            size = os.fstat(descriptor).st_size
            if size != self._total:
                raise self._refuse(f"the file has {size} bytes, expected {self._total}")
            os.fsync(descriptor)
            if self._hash is not None:
                self._sha256 = self._hash.hexdigest()
            self._finished = True
        except OSError as error:
            self._remove()
            raise self._failed(error) from error

    def publish(self) -> None:
        """The second half of `close`: give the finished file its name."""
        if not self._finished or not self._pending:
            raise WriteError(f"{self._path} is not finished, so it cannot get its name")
        try:
            self._temporary.replace(self._target)
            self._pending = False
            self._close()  # only now: the open file holds the lock that says that it is not abandoned
        except OSError as error:
            self._remove()
            raise self._failed(error) from error
        self._sync_folder()

    def abort(self) -> None:
        """Remove the unfinished file; does nothing when there is none."""
        if self._pending:
            self._remove()

    def _check_target(self) -> None:
        try:
            mode = self._target.stat().st_mode
        except FileNotFoundError:
            mode = None
        except (OSError, ValueError) as error:
            raise WriteError(f"{self._path} cannot be written: {error}") from error
        if mode is not None and not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise WriteError(f"{self._path} is {kind}, expected a file or nothing", hint="choose another output path")
        if not self._folder.is_dir():
            raise WriteError(f"{self._path} cannot be written: the folder {self._folder} does not exist")
        free = _free_bytes(self._folder)
        if free is not None and free < self._total:
            raise WriteError(
                f"{self._path} needs {self._total} bytes, but its disk has only {free} free",
                hint="free some space or choose an output path on another disk",
            )

    def _create(self) -> tuple[int, Path]:
        try:
            return create_unfinished(self._target)
        except OSError as error:
            raise self._failed(error) from error

    def _current(self, name: str) -> TensorPlan:
        """The tensor that `name` continues or begins. Empty tensors need no call of their own."""
        self._open()
        while self._index < len(self._tensors):
            tensor = self._tensors[self._index]
            if tensor.name == name:
                return tensor
            if self._done < tensor.nbytes:
                missing = tensor.nbytes - self._done
                raise self._refuse(f"data came for {name!r}, expected {missing} more bytes of {tensor.name!r}")
            self._index += 1
            self._done = 0
        raise self._refuse(f"data came for tensor {name!r}, but it is complete or not in the plan")

    def _put(self, view: memoryview) -> None:
        descriptor = self._open()
        done = 0
        try:
            while done < len(view):
                done += os.write(descriptor, view[done:])
            if self._hash is not None:
                self._hash.update(view)
        except OSError as error:
            self._remove()
            raise self._failed(error) from error

    def _open(self) -> int:
        if self._descriptor is None or self._finished:
            raise WriteError(f"{self._path} is not being written any more: its writer was closed or has failed")
        return self._descriptor

    def _refuse(self, message: str) -> WriteError:
        self._remove()
        return WriteError(f"{self._path}: {message}")

    def _failed(self, error: OSError) -> WriteError:
        return WriteError(
            f"{self._path} cannot be written: {error.strerror} ({self._total} bytes needed)", hint=hint_for(error)
        )

    def _remove(self) -> None:
        self._pending = False
        if self._hash is not None:
            self._hash.close()
        try:
            self._temporary.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("the unfinished file %s could not be removed: %s", self._temporary, error.strerror)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _sync_folder(self) -> None:
        """Make the new name durable. The file is complete by now, so a file system that cannot is only noted."""
        try:
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            log.info("the folder %s could not be flushed: %s", self._folder, error.strerror)


def _follow_links(path: str) -> Path:
    """Where the file itself will be: an output that is a link to another disk stays one."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
        raise WriteError(f"{path!r} cannot be written: {error}") from error


def _free_bytes(folder: Path) -> int | None:
    """Bytes that we may still write there; None when the file system does not say."""
    try:
        found = os.statvfs(folder)
    except (AttributeError, OSError):
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None
