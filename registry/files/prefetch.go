package files

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
)

// reading is what a file had when it was read.
type reading struct {
	sig  sig // how it looked just before
	err  error
	same bool // its content equals the accepted one
	blob *lastgood.Blob
	text lastgood.Decoded
}

// job is a file to read, with everything that is needed for it. What it points to does not
// change.
type job struct {
	cfg  *Config
	path string
	c    *change
	root *root
	sig  sig
	was  *lastgood.Blob // the accepted content, or nil
	done chan struct{}  // closed when it has been read
	got  reading        // to be read after that
}

func (t *tree) job(path string, c *change) *job {
	j := &job{cfg: &t.cfg, path: path, c: c, root: c.root, sig: c.sig}
	if f := t.files[path]; f != nil {
		j.was = f.V.Blob()
	}
	return j
}

// read reads the file, and decodes it if its content changed.
func (j *job) read() (r reading) {
	st, err := statFile(j.path)
	if r.sig = sigOf(&st); err == nil && r.sig != j.sig {
		err = errMoving
	}
	if err == nil {
		r.blob, err = readFile(j.path, j.sig, j.cfg.MaxFileSize)
	}
	if err != nil {
		r.err = err
		return r
	}
	if j.was != nil && j.was.Hash == r.blob.Hash {
		r.same, r.blob = true, nil
		return r
	}
	r.text = j.root.decode(j.cfg, j.path, r.blob)
	return r
}

// prefetch are the files of one step that several goroutines read, while their owner accepts
// them one after the other. Only the owner calls its methods; nil has no files.
type prefetch struct {
	jobs    map[*change]*job
	workers sync.WaitGroup
}

// prefetch starts to read all files that may be read now, in the order in which they are
// accepted. At a start or a checkout there are many, and decoding is nearly all of the work.
func (t *tree) prefetch(now time.Time) *prefetch {
	var jobs []*job
	for path, c := range t.changes {
		if !c.gone && c.next == nil && !c.readAt().After(now) {
			jobs = append(jobs, t.job(path, c))
		}
	}
	if len(jobs) < 2 {
		return nil
	}
	slices.SortFunc(jobs, func(a, b *job) int { return cmp.Compare(a.path, b.path) })
	a := &prefetch{jobs: make(map[*change]*job, len(jobs))}
	for _, j := range jobs {
		j.done = make(chan struct{})
		a.jobs[j.c] = j
	}
	spread(&a.workers, len(jobs), func(i int) int64 { return jobs[i].sig.size }, func(i int) {
		jobs[i].got = jobs[i].read()
		close(jobs[i].done)
	})
	return a
}

// reading is the reading of a changed file.
func (a *prefetch) reading(t *tree, path string, c *change) reading {
	if a != nil && a.jobs[c] != nil {
		j := a.jobs[c]
		delete(a.jobs, c) // it is read anew the next time
		<-j.done
		return j.got
	}
	return t.job(path, c).read()
}

// end waits until all reads have ended.
func (a *prefetch) end() {
	if a != nil {
		a.workers.Wait()
	}
}

// largeText is the size from which texts are decoded one at a time: decoding takes many times
// as much memory.
const largeText = 1 << 20

// spread calls do for n texts, in as many goroutines as there are cores.
func spread(workers *sync.WaitGroup, n int, size func(i int) int64, do func(i int)) {
	var (
		next  atomic.Int64
		large sync.Mutex
	)
	one := func(i int) {
		if size(i) >= largeText {
			large.Lock()
			defer large.Unlock()
		}
		do(i)
	}
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				one(i)
			}
		})
	}
}
