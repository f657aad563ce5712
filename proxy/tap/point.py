"""One direction of one connection, as a rule taps it: what the relay calls for every run of frames."""

import hashlib
from typing import Final

from librt.strings import BytesWriter, read_i32_be, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from proxy.tap.block import BlockBuilder, pack_codes
from proxy.tap.gap import Gap
from proxy.tap.record import (
    CAPTURE_FULL,
    CAPTURE_HASH,
    DIRECTION_REQUEST,
    FLAG_ANSWERS,
    FLAG_SIZES,
    FLAG_TRUNCATED,
    FLAG_WITHHELD,
    FRAME_HEADER_BYTES,
    FRAMING_INT32,
    HASH_BYTES,
    KIND_FRAMES,
    MAX_CHUNK_BYTES,
    REASON_CAPTURE,
    REASON_NONE,
    REASON_OVERSIZE,
    REASON_SAMPLED,
    REASON_WITHHELD,
)
from proxy.tap.writer import TapWriter

NO_FRAMES: Final = b""


class TapPoint:
    """Appends the runs of one direction of one connection to the log. Loop thread only.

    Made by ``TapRules.match`` when the connection is READY and kept by the relay beside the channel.
    """

    def __init__(
        self,
        writer: TapWriter,
        rule: str,
        listener: str,
        protocol: i64,
        direction: i64,
        principal: str | None,
        peer: str | None,
        connection: i64,
        capture: i64,
        max_frame_bytes: i64,
        mutes: bool,
        sampled_out: bool,
    ) -> None:
        """What ``TapRules.match`` found.

        Args:
            writer: the processor's log.
            rule, listener, principal, peer, connection: facts for the rows.
            protocol, direction, capture: codes of ``record``.
            max_frame_bytes: body bytes kept of each frame under full capture; 0 keeps all.
            mutes: the rule says ``on_full: mute``.
            sampled_out: the rule's share of connections leaves this one out; its frames are only counted, as a gap.
        """
        self._writer = writer
        self._builder: BlockBuilder = writer.builder
        self._rule = rule
        self._listener = listener
        self._protocol: i64 = protocol
        self._direction: i64 = direction
        self._principal = principal
        self._peer = peer
        self._connection: i64 = connection
        self._capture: i64 = capture
        self._max_frame_bytes: i64 = max_frame_bytes
        self._mutes = mutes
        self._sampled_out = sampled_out
        self._whole = capture == CAPTURE_FULL and max_frame_bytes == 0
        self._codes: i64 = pack_codes(direction, KIND_FRAMES, capture, REASON_NONE, FRAMING_INT32, protocol, 0)
        self._serial: i64 = -1
        self._listener_index: i32 = -1
        self._principal_index: i32 = -1
        self._peer_index: i32 = -1
        self._rule_index: i32 = -1
        self._gap: Gap | None = None

    def append(
        self,
        run: bytes | list[bytes],
        frame_count: i64,
        byte_count: i64,
        first_frame: i64,
        capture_ns: i64,
        sensitive: vec[i32] | None = None,
        keys: vec[i32] | None = None,
        latencies: vec[i32] | None = None,
    ) -> bool:
        """Take one run of whole frames.

        Args:
            run: the frames as they passed, headers included: one object, or the chunks it arrived in. Kept by reference, never changed.
            frame_count: frames in it, at least 1.
            byte_count: bytes in it.
            first_frame: how many frames passed on this connection and direction before these, tapped or not.
            capture_ns: wall clock; one reading for all runs of a poll is fine.
            sensitive: ascending indexes of the frames whose bodies carry credentials and must not be kept; None or empty: no frame.
            keys: for answers: the request's ``api key << 16 | version`` for each frame, -1 unknown; None: not paired.
            latencies: with keys: microseconds from request to answer, -1 unknown.

        Returns:
            True: go on. False (only under ``on_full: mute``): the run was taken, and the source is to be muted for ``tap`` until
            ``TapWriter.accepts`` says yes.

        Raises:
            ValueError: the run is not ``frame_count`` whole frames, or keys and latencies are not as many; nothing was appended.
        """
        if keys is not None and (len(keys) != frame_count or latencies is None or len(latencies) != frame_count):
            raise ValueError(f"keys and latencies of {len(keys)} answers with {frame_count} frames")
        writer = self._writer
        if self._direction == DIRECTION_REQUEST:
            writer.frames_matched_request += frame_count
        else:
            writer.frames_matched_response += frame_count
        writer.bytes_matched += byte_count
        if self._sampled_out:
            self._lose(REASON_SAMPLED, frame_count, byte_count, first_frame, capture_ns)
            return True
        refusal = writer.refusal()
        if refusal != 0 and not self._mutes:
            self._lose(refusal, frame_count, byte_count, first_frame, capture_ns)
            return True
        self._add(run, frame_count, byte_count, first_frame, capture_ns, sensitive, keys, latencies)
        writer.added()
        return not self._mutes or writer.refusal() == 0

    def lose(self, reason: int, frame_count: int, byte_count: int, first_frame: int, capture_ns: int) -> None:
        """Say that frames, or bytes of a frame that never became whole, will never come: a gap chunk.

        Args:
            reason: ``REASON_PARTIAL_FRAME`` with no frames, for a frame that its sender did not finish.
            others: as in ``append``. The frames are not counted as matched: the caller says they never passed.
        """
        gap = self._new_gap(reason, first_frame, capture_ns)
        self._writer.lose(gap, frame_count, byte_count)

    def _add(
        self,
        run: bytes | list[bytes],
        frame_count: i64,
        byte_count: i64,
        first_frame: i64,
        capture_ns: i64,
        sensitive: vec[i32] | None,
        keys: vec[i32] | None,
        latencies: vec[i32] | None,
    ) -> None:
        builder = self._builder
        if self._serial != builder.serial:
            self._intern(builder)
        if capture_ns < builder.last_ns:
            capture_ns = builder.last_ns
        if self._mutes:
            builder.must_keep = True
        data_offset = builder.data_len
        starts_index = builder.starts_count
        sizes_index: i64 = -1
        answers_index: i64 = -1
        lost_bytes: i64 = 0
        codes = self._codes
        if self._whole and sensitive is None and byte_count <= MAX_CHUNK_BYTES:
            if isinstance(run, bytes):
                scan(run, frame_count, byte_count, builder.starts)
                builder.add_piece(run)
            else:
                scan_pieces(run, frame_count, byte_count, builder.starts)
                builder.add_pieces(run)
        else:
            sizes_index = builder.sizes_count
            flags = self._add_cut(builder, run, frame_count, byte_count, sensitive)
            lost_bytes = self._cut_bytes(frame_count, byte_count, builder.data_len - data_offset)
            codes |= (_cut_reason(byte_count, lost_bytes, flags) << 24) | ((flags | FLAG_SIZES) << 48)
        builder.starts_count += frame_count
        if keys is not None and latencies is not None:
            answers_index = builder.answers_count
            codes |= FLAG_ANSWERS << 48
            builder.add_answers(keys, latencies)
        builder.add_frames_row(
            capture_ns,
            self._connection,
            first_frame,
            byte_count,
            lost_bytes,
            data_offset,
            frame_count,
            starts_index,
            sizes_index,
            answers_index,
            self._listener_index,
            self._principal_index,
            self._peer_index,
            self._rule_index,
            codes,
        )

    def _add_cut(self, builder: BlockBuilder, run: bytes | list[bytes], frame_count: i64, byte_count: i64, sensitive: vec[i32] | None) -> i64:
        """Append what the rule keeps of each frame, with starts and sizes; returns the chunk's flags."""
        pieces = [run] if isinstance(run, bytes) else run
        positions = find_frames(pieces, frame_count, byte_count)
        cursor = PieceCursor(pieces)
        hashes = self._capture == CAPTURE_HASH
        flags: i64 = 0
        cap: i64 = 0
        if self._capture == CAPTURE_FULL and byte_count <= MAX_CHUNK_BYTES:
            cap = self._max_frame_bytes if self._max_frame_bytes > 0 else MAX_CHUNK_BYTES
        masked: i64 = 0
        masks: i64 = len(sensitive) if sensitive is not None else 0
        kept_from: i64 = 0
        kept_to: i64 = 0
        stored: i64 = 0
        index: i64 = 0
        while index < frame_count:
            start = positions[index]
            size = positions[index + 1] - start - FRAME_HEADER_BYTES
            keep = size if size < cap else cap
            withheld = False
            if sensitive is not None and masked < masks and i64(sensitive[masked]) == index:
                masked += 1
                withheld = True
                keep = 0
                flags |= FLAG_WITHHELD
            elif keep < size and cap > 0:
                flags |= FLAG_TRUNCATED
            write_i32_le(builder.starts, i32(stored))
            write_i32_le(builder.sizes, i32(size))
            if kept_to != start:
                cursor.copy(kept_from, kept_to, builder)
                kept_from = start
            kept_to = start + FRAME_HEADER_BYTES + keep
            stored += FRAME_HEADER_BYTES + keep
            if hashes and not withheld:
                cursor.copy(kept_from, kept_to, builder)
                builder.add_piece(cursor.digest(kept_to, kept_to + size))
                kept_from = kept_to = positions[index + 1]
                stored += HASH_BYTES
            index += 1
        cursor.copy(kept_from, kept_to, builder)
        builder.sizes_count += frame_count
        return flags

    def _cut_bytes(self, frame_count: i64, byte_count: i64, stored: i64) -> i64:
        """Bytes on the wire that are not in the chunk; a hash is not what it stands for."""
        return byte_count - FRAME_HEADER_BYTES * frame_count if self._capture == CAPTURE_HASH else byte_count - stored

    def _intern(self, builder: BlockBuilder) -> None:
        """Look this point's strings up in the block being built."""
        self._serial = builder.serial
        self._listener_index = builder.string(self._listener)
        self._principal_index = builder.string(self._principal)
        self._peer_index = builder.string(self._peer)
        self._rule_index = builder.string(self._rule)

    def _lose(self, reason: i64, frame_count: i64, byte_count: i64, first_frame: i64, capture_ns: i64) -> None:
        gap = self._gap
        if gap is None or gap.written or gap.reason != reason:
            gap = self._new_gap(reason, first_frame, capture_ns)
        self._gap = self._writer.lose(gap, frame_count, byte_count)

    def _new_gap(self, reason: i64, first_frame: i64, capture_ns: i64) -> Gap:
        return Gap(
            self._connection,
            self._direction,
            reason,
            FRAMING_INT32,
            self._protocol,
            self._capture,
            self._listener,
            self._principal,
            self._peer,
            self._rule,
            first_frame,
            capture_ns,
        )


def _cut_reason(byte_count: i64, lost_bytes: i64, flags: i64) -> i64:
    """Why bytes are missing from a chunk."""
    if byte_count > MAX_CHUNK_BYTES:
        return REASON_OVERSIZE
    if flags & FLAG_WITHHELD:
        return REASON_WITHHELD
    return REASON_CAPTURE if lost_bytes > 0 else REASON_NONE


class PieceCursor:
    """Reads ranges of a run that is a list of pieces, from front to back."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._index: i64 = 0
        self._base: i64 = 0

    def parts(self, start: i64, end: i64) -> list[bytes]:
        """The bytes from ``start`` to ``end``; ``start`` never goes back."""
        found: list[bytes] = []
        while start < end:
            piece = self._pieces[self._index]
            length: i64 = len(piece)
            if start >= self._base + length:
                self._base += length
                self._index += 1
                continue
            stop = end - self._base
            if stop > length:
                stop = length
            found.append(piece[start - self._base : stop])
            start = self._base + stop
        return found

    def copy(self, start: i64, end: i64, builder: BlockBuilder) -> None:
        """Append a range to the block's data."""
        for part in self.parts(start, end):
            builder.add_piece(part)

    def digest(self, start: i64, end: i64) -> bytes:
        """The hash kept in place of a body: ``HASH_BYTES`` of BLAKE2b."""
        state = hashlib.blake2b(digest_size=HASH_BYTES)
        for part in self.parts(start, end):
            state.update(part)
        return state.digest()


def scan(run: bytes, frame_count: i64, byte_count: i64, starts: BytesWriter) -> None:
    """Append the starts of a run's frames to ``starts``.

    Args:
        run: whole frames.
        frame_count, byte_count: what it must hold; at most ``MAX_CHUNK_BYTES``.

    Raises:
        ValueError: it does not; ``starts`` is as before.
    """
    before = len(starts)
    position: i64 = 0
    last = i64(len(run)) - FRAME_HEADER_BYTES
    frames: i64 = 0
    while position <= last and frames < frame_count:
        write_i32_le(starts, i32(position))
        position += FRAME_HEADER_BYTES + i64(read_i32_be(run, position))
        frames += 1
    if position != byte_count or frames != frame_count or byte_count != len(run):
        starts.truncate(before)
        raise ValueError(f"a run of {len(run)} bytes is not {frame_count} frames of {byte_count} bytes")


def scan_pieces(pieces: list[bytes], frame_count: i64, byte_count: i64, starts: BytesWriter) -> None:
    """``scan`` for a run in pieces; a frame's header may lie across them."""
    positions = find_frames(pieces, frame_count, byte_count)
    index: i64 = 0
    while index < frame_count:
        write_i32_le(starts, i32(positions[index]))
        index += 1


def find_frames(pieces: list[bytes], frame_count: i64, byte_count: i64) -> vec[i64]:
    """Where the frames of a run in pieces begin, and, last, where they end.

    Raises:
        ValueError: the pieces are not ``frame_count`` whole frames of ``byte_count`` bytes.
    """
    positions = vec[i64](capacity=frame_count + 1)
    position: i64 = 0
    base: i64 = 0
    index: i64 = 0
    count: i64 = len(pieces)
    piece = pieces[0] if count > 0 else NO_FRAMES
    length: i64 = len(piece)
    frames: i64 = 0
    while frames < frame_count:
        while position >= base + length and index + 1 < count:
            base += length
            index += 1
            piece = pieces[index]
            length = len(piece)
        at = position - base
        if at + FRAME_HEADER_BYTES <= length:
            size = i64(read_i32_be(piece, at))
        else:
            size = _split_header(pieces, index, at)
        positions = append(positions, position)
        position += FRAME_HEADER_BYTES + size
        frames += 1
    total: i64 = 0
    for piece in pieces:
        total += len(piece)
    if position != byte_count or total != byte_count:
        raise ValueError(f"a run of {total} bytes is not {frame_count} frames of {byte_count} bytes")
    return append(positions, position)


def _split_header(pieces: list[bytes], index: i64, at: i64) -> i64:
    """The size in a header that begins at ``at`` of one piece and ends in a later one."""
    header = pieces[index][at : at + FRAME_HEADER_BYTES]
    index += 1
    while len(header) < FRAME_HEADER_BYTES and index < len(pieces):
        header += pieces[index][: FRAME_HEADER_BYTES - len(header)]
        index += 1
    if len(header) < FRAME_HEADER_BYTES:
        raise ValueError("a run that ends inside a frame's header")
    return i64(read_i32_be(header, 0))
