"""One direction of one connection, as a rule taps it: what the relay calls for every run of frames."""

from librt.strings import BytesWriter, read_i32_be, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from proxy.network.run import Buffer, Run
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
    REASON_UNDELIVERED,
    REASON_WITHHELD,
)
from proxy.tap.writer import TapWriter


class TapPoint:
    """Appends the runs of one direction of one connection to the log. Loop thread only.

    Made by ``TapRules.match`` when the connection is READY and kept by the relay beside the channel.

    Attributes:
        mutes: a full log is to stop the source: ask ``may_read`` before each read.
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
        self.mutes: bool = mutes and not sampled_out
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
        run: Run,
        first_frame: i64,
        capture_ns: i64,
        sensitive: vec[i32] | None = None,
        keys: vec[i32] | None = None,
        latencies: vec[i32] | None = None,
    ) -> bool:
        """Take one run of whole frames.

        Args:
            run: the frames as they passed. Its bytes are kept by reference until they are on disk, and must never change.
            first_frame: how many frames passed on this connection and direction before these, tapped or not.
            capture_ns: wall clock; one reading for all runs of a poll is fine.
            sensitive: ascending indexes of the frames whose bodies carry credentials and must not be kept; None or empty: no frame.
            keys: for answers: the request's ``api key << 16 | version`` for each frame, -1 unknown; None: not paired.
            latencies: with keys: microseconds from request to answer, -1 unknown.

        Returns:
            True: go on. False (only under ``on_full: mute``): the run was taken, and the source is to be muted for ``tap`` until
            ``TapWriter.accepts`` says yes.

        Raises:
            ValueError: keys and latencies are not as many as the frames; nothing was appended.
        """
        frame_count = run.frames
        if keys is not None and (len(keys) != frame_count or latencies is None or len(latencies) != frame_count):
            raise ValueError(f"keys and latencies of {len(keys)} answers with {frame_count} frames")
        writer = self._writer
        refusal = REASON_SAMPLED if self._sampled_out else 0 if self.mutes else writer.refusal()
        if refusal != 0:
            self._match(frame_count, run.size)
            self._lose(refusal, frame_count, run.size, first_frame, capture_ns)
            return True
        self._add(run, first_frame, capture_ns, sensitive, keys, latencies)
        self._match(frame_count, run.size)
        writer.added()
        return not self.mutes or writer.keeps_up()

    def may_read(self) -> bool:
        """Whether the source may be read: only under ``on_full: mute`` it may not, while the log is full. After False: as after ``append``."""
        return not self.mutes or self._writer.keeps_up()

    def drop(self, frame_count: i64, byte_count: i64, first_frame: i64, capture_ns: i64) -> None:
        """Count whole frames that were received and are not passed on: matched, and in the log as a gap.

        Args:
            frame_count, byte_count: how much, headers included.
            first_frame, capture_ns: as in ``append``.
        """
        self._match(frame_count, byte_count)
        self._lose(REASON_SAMPLED if self._sampled_out else REASON_UNDELIVERED, frame_count, byte_count, first_frame, capture_ns)

    def _match(self, frame_count: i64, byte_count: i64) -> None:
        writer = self._writer
        if self._direction == DIRECTION_REQUEST:
            writer.frames_matched_request += frame_count
        else:
            writer.frames_matched_response += frame_count
        writer.bytes_matched += byte_count

    def lose(self, reason: int, frame_count: int, byte_count: int, first_frame: int, capture_ns: int) -> None:
        """Say that frames, or bytes of a frame that never became whole, will never come: a gap chunk.

        Args:
            reason: ``REASON_PARTIAL_FRAME`` with no frames, for a frame that its sender did not finish.
            frame_count, byte_count: how much.
            first_frame, capture_ns: as in ``append``. The frames are not counted as matched: the caller says they never passed.
        """
        gap = self._new_gap(reason, first_frame, capture_ns)
        self._writer.lose(gap, frame_count, byte_count)

    def _add(
        self,
        run: Run,
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
        if self.mutes:
            builder.must_keep = True
        data_offset = builder.data_len
        starts_index = builder.starts_count
        sizes_index: i64 = -1
        answers_index: i64 = -1
        lost_bytes: i64 = 0
        codes = self._codes
        if self._whole and (sensitive is None or len(sensitive) == 0) and run.size <= MAX_CHUNK_BYTES:
            write_starts(run, builder.starts)
            if run.head is not None:
                builder.add_pieces(run.head)
            builder.add_piece(run.tail())
        else:
            sizes_index = builder.sizes_count
            flags = self._add_cut(builder, run, sensitive)
            lost_bytes = self._cut_bytes(run, builder.data_len - data_offset)
            codes |= (_cut_reason(run.size, lost_bytes, flags) << 24) | ((flags | FLAG_SIZES) << 48)
            builder.sizes_count += run.frames
        builder.starts_count += run.frames
        if keys is not None and latencies is not None:
            answers_index = builder.answers_count
            codes |= FLAG_ANSWERS << 48
            builder.add_answers(keys, latencies)
        builder.add_frames_row(
            capture_ns,
            self._connection,
            first_frame,
            run.size,
            lost_bytes,
            data_offset,
            run.frames,
            starts_index,
            sizes_index,
            answers_index,
            self._listener_index,
            self._principal_index,
            self._peer_index,
            self._rule_index,
            codes,
        )

    def _add_cut(self, builder: BlockBuilder, run: Run, sensitive: vec[i32] | None) -> i64:
        """Append what the rule keeps of each frame, with starts and sizes; returns the chunk's flags."""
        positions = find_frames(run)
        cursor = PieceCursor(run.pieces())
        masks = i64(len(sensitive)) if sensitive is not None else 0
        masked: i64 = 0
        cap = self._cap(run.size)
        hashes = self._capture == CAPTURE_HASH and run.size <= MAX_CHUNK_BYTES
        flags: i64 = 0
        kept_from: i64 = 0
        kept_to: i64 = 0
        stored: i64 = 0
        index: i64 = 0
        while index < run.frames:
            start = positions[index]
            size = positions[index + 1] - start - FRAME_HEADER_BYTES
            keep = size if size < cap else cap
            withheld = sensitive is not None and masked < masks and i64(sensitive[masked]) == index
            if withheld:
                masked += 1
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
        return flags

    def _cap(self, run_size: i64) -> i64:
        """How many bytes of each body may be kept."""
        if self._capture != CAPTURE_FULL or run_size > MAX_CHUNK_BYTES:
            return 0
        return self._max_frame_bytes if self._max_frame_bytes > 0 else MAX_CHUNK_BYTES

    def _cut_bytes(self, run: Run, stored: i64) -> i64:
        """Bytes on the wire that are not in the chunk; a hash is not what it stands for."""
        return run.size - FRAME_HEADER_BYTES * run.frames if self._capture == CAPTURE_HASH else run.size - stored

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

    def __init__(self, pieces: list[Buffer]) -> None:
        self._pieces = pieces
        self._index: i64 = 0
        self._base: i64 = 0

    def parts(self, start: i64, end: i64) -> list[Buffer]:
        """The bytes from ``start`` to ``end``; ``start`` never goes back."""
        found: list[Buffer] = []
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
        import hashlib  # here: it loads OpenSSL, and only a rule that hashes needs it

        state = hashlib.blake2b(digest_size=HASH_BYTES)
        for part in self.parts(start, end):
            state.update(part)
        return state.digest()


def write_starts(run: Run, starts: BytesWriter) -> None:
    """Append where each frame of the run starts. About 4 ns a frame when compiled."""
    if run.head is not None:
        write_i32_le(starts, 0)
    data = run.data
    head_size = run.head_size
    end = run.end
    position = run.first
    while position < end:
        write_i32_le(starts, i32(head_size + position))
        position += FRAME_HEADER_BYTES + i64(read_i32_be(data, position))


def find_frames(run: Run) -> "vec[i64]":
    """Where each frame of the run starts, and, last, where the run ends. Positions count from the start of the run."""
    positions = vec[i64](capacity=run.frames + 1)
    if run.head is not None:
        positions = append(positions, i64(0))
    position = run.first
    while position < run.end:
        positions = append(positions, run.head_size + position)
        position += FRAME_HEADER_BYTES + i64(read_i32_be(run.data, position))
    return append(positions, run.size)
