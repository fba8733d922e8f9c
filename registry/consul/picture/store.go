package picture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
)

const (
	// shards is the number of files that the services are spread over.
	shards = 128
	// readEvery is how often it is written that nothing has changed.
	readEvery = time.Minute
)

// Store keeps the picture of one source. What is put is staged: it comes to disk
// once it is committed.
type Store struct {
	// Constant after New.
	cfg  Config
	log  *slog.Logger
	disk durable.FS
	zip  compressors

	mu sync.Mutex // guards all following fields
	// kept is what is on disk, or on its way; staged is what differs from it, nil
	// where a service is gone.
	kept   [shards]map[Key]*stored
	staged map[Key]staged
	stage  uint64 // of the latest that was put
	dirty  map[int]bool
	// fresh says that nothing of what may be in the directory is this picture.
	fresh  bool
	read   time.Time // when the picture was last known to be Consul's
	failed uint64
	reason string // of the last attempt, or empty
}

type staged struct {
	stage uint64
	of    *stored // nil: gone
}

// New makes a Store. It touches no file.
func New(c Config) (*Store, error) {
	if c.Dir == "" || c.Logger == nil || c.WriteEvery < 0 {
		return nil, errors.New("picture: Config needs Dir and Logger, and WriteEvery is not negative")
	}
	c.WriteEvery = cmp.Or(c.WriteEvery, 5*time.Second)
	s := &Store{
		cfg: c, log: c.Logger, disk: durable.OS{},
		staged: map[Key]staged{}, dirty: map[int]bool{}, fresh: true,
	}
	for i := range s.kept {
		s.kept[i] = map[Key]*stored{}
	}
	return s, nil
}

func shardOf(k Key) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, k.Partition+"\x00"+k.Namespace+"\x00"+k.Service) // never fails
	return int(h.Sum32() % shards)
}

func (s *Store) path(shard int) string {
	return filepath.Join(s.cfg.Dir, fmt.Sprintf("services-%03d.json", shard))
}

func (s *Store) readPath() string { return filepath.Join(s.cfg.Dir, "read.json") }

// Load is what was kept: nil where nothing was, or what was is of something
// else, for the mark is the last that is written of a first picture. If any part of it is damaged there is an error and no picture, because a
// part of a catalog is not the catalog. It is called before Run.
func (s *Store) Load() (*Picture, error) {
	mark, err := s.loadFile(s.readPath())
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errOther):
		return nil, nil //nolint:nilnil // no picture is no error
	case err != nil:
		return nil, err
	}
	out := &Picture{Read: mark.Read, Services: map[Key]Service{}}
	var errs []error
	s.mu.Lock()
	defer s.mu.Unlock()
	for shard := range shards {
		f, err := s.loadFile(s.path(shard))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, x := range f.Services {
			svc, err := x.decode()
			if err != nil {
				errs = append(errs, fmt.Errorf("reading service %q in %q: %w", x.Service, s.path(shard), err))
				continue
			}
			out.Services[x.Key] = svc
			s.kept[shard][x.Key] = x
		}
	}
	if err := errors.Join(errs...); err != nil {
		for i := range s.kept {
			clear(s.kept[i])
		}
		return nil, err
	}
	s.read, s.fresh = mark.Read, false
	return out, nil
}

func (s *Store) loadFile(path string) (*file, error) {
	data, err := durable.ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	f, err := unseal(data, s.cfg.Of)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	return f, nil
}

// Put stages what Consul says of a service. The entries are not kept.
func (s *Store) Put(key Key, svc Service) error {
	x, err := s.zip.encode(key, svc)
	if err != nil {
		return fmt.Errorf("keeping service %q: %w", key.Service, err)
	}
	s.put(key, x)
	return nil
}

// Delete stages that a service is gone.
func (s *Store) Delete(key Key) { s.put(key, nil) }

func (s *Store) put(key Key, x *stored) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stage++
	before := s.kept[shardOf(key)][key]
	if before.equal(x) || before == nil && x == nil {
		delete(s.staged, key)
		return
	}
	s.staged[key] = staged{s.stage, x}
}

// Stage names all that has been put until now, for Commit.
func (s *Store) Stage() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stage
}

// Commit lets what was put until a stage come to disk. What was put again since
// waits for the commit of its own stage.
func (s *Store) Commit(stage uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, x := range s.staged {
		if x.stage > stage {
			continue
		}
		shard := shardOf(key)
		if x.of == nil {
			delete(s.kept[shard], key)
		} else {
			s.kept[shard][key] = x.of
		}
		s.dirty[shard] = true
		delete(s.staged, key)
	}
	if s.fresh {
		s.fresh = false
		for shard := range shards { // what is there is of something else
			s.dirty[shard] = true
		}
	}
}

// Seen says that the picture, with all that is staged, was Consul's at a time.
func (s *Store) Seen(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = at
}

// Trouble is the number of failed attempts to write, and why the last one did.
func (s *Store) Trouble() (failed uint64, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed, s.reason
}

// Run writes until ctx is done, and then what is waiting still: it is to end
// after whoever commits.
func (s *Store) Run(ctx context.Context) error {
	if err := durable.MakeDir(s.cfg.Dir); err != nil {
		return fmt.Errorf("keeping the picture of Consul: %w", err)
	}
	tick := time.NewTicker(s.cfg.WriteEvery)
	defer tick.Stop()
	var marked time.Time
	for {
		select {
		case <-ctx.Done():
			s.flush(true)
			return nil
		case <-tick.C:
		}
		if s.flush(time.Since(marked) >= readEvery) {
			marked = time.Now()
		}
	}
}

// flush writes the files in which something changed and, asked to, when the
// picture was last true. It reports whether that is written.
func (s *Store) flush(mark bool) bool {
	s.mu.Lock()
	work := map[int][]*stored{}
	for shard := range s.dirty {
		work[shard] = slices.SortedFunc(maps.Values(s.kept[shard]), func(a, b *stored) int { return a.Compare(b.Key) })
	}
	s.dirty = map[int]bool{}
	read := s.read
	s.mu.Unlock()
	mark = (mark || len(work) > 0) && !read.IsZero()
	var errs []error
	for shard, list := range work {
		if err := s.write(s.path(shard), &file{Version: version, Of: s.cfg.Of, Services: list}); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(work, shard)
	}
	if len(errs) == 0 && mark { // it speaks of all that is written
		errs = append(errs, s.write(s.readPath(), &file{Version: version, Of: s.cfg.Of, Read: read}))
	}
	err := errors.Join(errs...)
	s.tell(work, err)
	return mark && err == nil
}

func (s *Store) write(path string, f *file) error {
	data, err := seal(f)
	if err != nil {
		return fmt.Errorf("writing %q: %w", path, err)
	}
	return durable.WriteBuffers(s.disk, path, data, 0o600)
}

// tell takes note of what could not be written; it waits on.
func (s *Store) tell(left map[int][]*stored, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for shard := range left {
		s.dirty[shard] = true
	}
	was := s.reason
	s.reason = ""
	if err != nil {
		s.failed++
		s.reason = err.Error()
	}
	switch {
	case err != nil && was == "":
		s.log.Error("picture of consul cannot be saved, a restart while consul is away would not have it", "path", s.cfg.Dir, "err", err)
	case err == nil && was != "":
		s.log.Info("picture of consul is saved again", "path", s.cfg.Dir)
	}
}
