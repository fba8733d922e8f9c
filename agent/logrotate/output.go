package logrotate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// copyLast is the time for what is left of Envoy's output when the agent ends.
const copyLast = 2 * time.Second

// output is the file that Envoy's output goes to. Envoy got it as a descriptor and cannot open it
// again, and an access log at /dev/stdout is the same file. So it keeps its name, and is emptied.
type output struct {
	path  string
	files int
	to    io.Writer // or nil
	log   *slog.Logger

	mu sync.Mutex // guards all following fields
	// offset is up to where to has got the file with this identity.
	offset int64
	id     fileID
	// emptied counts how often the file began anew.
	emptied int
}

// bound empties the output when it is too large. Without a writer its content becomes FILE.1.
// Where there is no room for that, the oldest rotated files go, and then the content.
func (o *output) bound(size int64) (n counted, err error) {
	f, err := os.OpenFile(o.path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return n, fmt.Errorf("bounding Envoy's output: %w", err)
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return n, nil // a terminal, or /dev/null
	}
	p, err := openPlace(resolved(o.path))
	if err != nil {
		return n, err
	}
	defer p.close()
	limit, low, err := limits(p, size, o.files)
	if err != nil {
		return n, err
	}
	if st.Size < limit && (low == 0 || st.Size == 0) {
		return n, nil
	}
	if o.to != nil {
		return o.empty(f, low > 0 || st.Size >= behindLimit*limit)
	}
	return o.rotate(f, p, low > 0)
}

// behindLimit is how many times the usual size the output may have before it is dropped although
// to has not got all of it.
const behindLimit = 2

// empty drops what to has got. What it has not got is dropped only if it must be.
func (o *output) empty(f *os.File, must bool) (n counted, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return n, fmt.Errorf("bounding Envoy's output: %w", err)
	}
	if size > o.offset && !must {
		return n, nil
	}
	// The note first: an agent that is killed in between writes lines twice and loses none.
	left := size - o.offset
	o.offset = 0
	err = o.note()
	if terr := f.Truncate(0); terr != nil {
		o.offset = size - left
		return n, fmt.Errorf("bounding Envoy's output: %w", errors.Join(terr, o.note()))
	}
	if left > 0 {
		n.dropped = uint64(left)
		o.log.Warn("a part of Envoy's output was dropped: nobody took it", "path", o.path, "bytes", left)
	}
	o.emptied++
	n.rotations = 1
	return n, err
}

// rotate copies the output to FILE.1, and empties it.
func (o *output) rotate(f *os.File, p *place, full bool) (n counted, err error) {
	if full {
		removed, err := p.removeOldest(o.files)
		if err != nil {
			return n, err
		}
		if removed {
			n.removed = 1
			return n, nil
		}
	}
	copied, err := o.copyOut(f, p)
	if err != nil {
		if !errors.Is(err, unix.ENOSPC) {
			return n, err
		}
		if removed, rerr := p.removeOldest(o.files); rerr != nil || removed {
			n.removed = 1
			return n, rerr
		}
		o.log.Warn("the file system of Envoy's output is full; the output was dropped", "path", o.path)
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return n, fmt.Errorf("bounding Envoy's output: %w", err)
	}
	// What Envoy writes between these two calls is lost.
	if err := f.Truncate(0); err != nil {
		return n, fmt.Errorf("bounding Envoy's output: %w", err)
	}
	n.rotations, n.dropped = 1, uint64(max(0, end-copied))
	o.log.Info("Envoy's output rotated", "path", o.path)
	return n, nil
}

// copyOut copies all of the output to FILE.1, and returns how much that is; 0 after an error.
func (o *output) copyOut(f *os.File, p *place) (int64, error) {
	if err := p.shift(o.files); err != nil {
		return 0, err
	}
	fd, err := unix.Openat(p.dir, p.old(1), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, usual)
	if err != nil {
		return 0, p.explain("making", p.old(1), err)
	}
	to := os.NewFile(uintptr(fd), p.old(1))
	copied := int64(0)
	if _, err = f.Seek(0, io.SeekStart); err == nil {
		for { // until Envoy writes no more than we read
			var n int64
			n, err = io.Copy(to, f)
			copied += n
			if fi, serr := f.Stat(); err != nil || serr != nil || fi.Size() <= copied {
				break
			}
		}
	}
	if err = errors.Join(err, to.Close()); err != nil {
		_, rerr := p.remove(1)
		return 0, errors.Join(p.explain("copying Envoy's output to", p.old(1), err), rerr)
	}
	return copied, nil
}

// copyOn gives to what Envoy writes, until ctx ends and all of it is there.
func (o *output) copyOn(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(min(interval, copyInterval))
	defer tick.Stop()
	for ended := false; ; {
		if err := o.copyNew(); err != nil {
			o.log.WarnContext(ctx, "Envoy's output could not be written to the agent's own", "path", o.path, "err", err)
			return
		}
		if ended {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			ended = true
		}
	}
}

// copyInterval is how late a line of Envoy's output may be.
const copyInterval = 250 * time.Millisecond

// chunk is how much is written at a time, in bytes: lines up to this length stay whole.
const chunk = 64 << 10

// copyNew gives to what it has not got.
func (o *output) copyNew() error {
	buf := make([]byte, chunk)
	for {
		n, of := o.next(buf)
		if n == 0 {
			return nil
		}
		if _, err := o.to.Write(buf[:n]); err != nil {
			return fmt.Errorf("writing Envoy's output: %w", err)
		}
		o.mu.Lock()
		if o.emptied == of {
			o.offset += int64(n)
		}
		err := o.note()
		o.mu.Unlock()
		if err != nil {
			o.log.Debug("noting how much of Envoy's output was written failed", "path", o.path, "err", err)
		}
	}
}

// next reads what to has not got: whole lines, as far as there are some. It also returns how often
// the file has begun anew.
func (o *output) next(buf []byte) (n, of int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f, err := os.Open(o.path)
	if err != nil {
		return 0, 0
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, 0
	}
	if idOf(&st) != o.id || st.Size < o.offset { // another one, or somebody emptied it
		o.id, o.offset = idOf(&st), 0
		o.emptied++
	}
	n, err = f.ReadAt(buf, o.offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, 0
	}
	if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
		n = i + 1
	} else if n < len(buf) {
		n = 0 // the rest of the line is still to come
	}
	return n, o.emptied
}

// noted is the file that says how much of the output was written, for the next agent.
func (o *output) noted() string { return o.path + ".written" }

// begin continues where the agent before ended. What is in a file of which nothing is noted was
// written for the file. A note that cannot be read, is of another file, or of more than the file
// has, says that an agent wrote lines on, but not which: then they are written again, because the
// alternative is to lose some.
func (o *output) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	var st unix.Stat_t
	if unix.Stat(o.path, &st) != nil {
		return
	}
	o.id, o.offset = idOf(&st), st.Size
	if b, err := os.ReadFile(o.noted()); !errors.Is(err, fs.ErrNotExist) {
		o.offset = 0
		var id fileID
		var offset int64
		if _, err := fmt.Sscanf(string(b), "%d %d %d\n", &id.dev, &id.ino, &offset); err == nil && id == o.id && offset >= 0 && offset <= st.Size {
			o.offset = offset
		}
	}
	if err := o.note(); err != nil {
		o.log.Debug("noting how much of Envoy's output was written failed", "path", o.path, "err", err)
	}
}

// note writes down how much was written. The text always has the same length and is written over
// the one before by one system call, so an agent that is killed leaves one of both: a note that is
// emptied first would lose lines. After a crash the last lines may be written twice.
func (o *output) note() error {
	f, err := os.OpenFile(o.noted(), os.O_WRONLY|os.O_CREATE, usual)
	if err != nil {
		return fmt.Errorf("noting how much of Envoy's output was written: %w", err)
	}
	_, err = fmt.Fprintf(f, "%020d %020d %020d\n", o.id.dev, o.id.ino, o.offset)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("noting how much of Envoy's output was written: %w", err)
	}
	return nil
}
