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
	same bool // it has the content that is believed already
	blob *lastgood.Blob
	text lastgood.Decoded
}

// job is a file to be read: all that has to be known for it. What it points to does
// not change.
type job struct {
	cfg  *Config
	path string
	c    *change
	root *root
	sig  sig
	was  *lastgood.Blob // what is believed, or nil
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

// read reads the file, and decodes it if its content is another.
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

// ahead is the files of one step that are read by several goroutines, while their
// owner believes one after the other. Its methods are the owner's; nil is none.
type ahead struct {
	jobs    map[*change]*job
	workers sync.WaitGroup
}

// readAhead begins to read all files that may be read by now, in the order in
// which they are believed. A start, or the checkout of another branch, is many
// files, and to decode them is nearly all that they cost.
func (t *tree) readAhead(now time.Time) *ahead {
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
	a := &ahead{jobs: make(map[*change]*job, len(jobs))}
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

// reading is what a file of a change has.
func (a *ahead) reading(t *tree, path string, c *change) reading {
	if a != nil && a.jobs[c] != nil {
		j := a.jobs[c]
		delete(a.jobs, c) // it is read anew the next time
		<-j.done
		return j.got
	}
	return t.job(path, c).read()
}

// end waits until nothing is read any more.
func (a *ahead) end() {
	if a != nil {
		a.workers.Wait()
	}
}

// largeText is the size from which texts are decoded one at a time: what is made
// of a text meanwhile is many times as large.
const largeText = 1 << 20

// spread does something of n texts, in as many goroutines as there are cores.
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
