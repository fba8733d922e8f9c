package metrics

import (
	"bytes"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// counter is one of the counters of a [row].
type counter int

// The counters of Istio.
const (
	requests counter = iota
	opened
	closed
	sent
	received
	counters
)

// histogram is one of the histograms of a [row].
type histogram int

// The histograms of Istio.
const (
	duration histogram = iota
	requestBytes
	responseBytes
	histograms
)

func counterNames() [counters]string {
	return [counters]string{
		"istio_requests_total", "istio_tcp_connections_opened_total", "istio_tcp_connections_closed_total",
		"istio_tcp_sent_bytes_total", "istio_tcp_received_bytes_total",
	}
}

func histogramNames() [histograms]string {
	return [histograms]string{"istio_request_duration_milliseconds", "istio_request_bytes", "istio_response_bytes"}
}

// istioBounds are the upper bounds of Istio's histograms, Envoy's default.
func istioBounds() []string {
	return []string{
		"0.5", "1", "5", "10", "25", "50", "100", "250", "500", "1000", "2500", "5000", "10000", "30000", "60000",
		"300000", "600000", "1.8e+06", "3.6e+06", "+Inf",
	}
}

// How long a row without a change is kept once nothing refers to it, and how long at least if
// there are too many.
const (
	idleTime     = time.Hour
	idleTimeFull = 10 * time.Minute
)

// DefaultMaxSeries is the default limit of label sets, each with up to 67 series.
const DefaultMaxSeries = 2000

// store has the counters of a host, by label set. They grow for as long as the process lives,
// whatever becomes of Envoy's.
type store struct {
	max int

	mu  sync.Mutex // guards all following fields, and the rows
	own Workload
	// ownChanges counts changes of own.
	ownChanges uint64
	rows       map[string]*row
	// sorted are the rows by labels; nil after a change.
	sorted []*row
	// byInput are the rows of label sets that came by access logs, by their input. It is
	// emptied when it is full.
	byInput map[string]*row
	// overflow are the rows that count what is beyond the limit; not in rows.
	overflow map[reporter]*row
	// overflowed counts label sets that found no place.
	overflowed uint64
	// finished means that the counters were saved, and do not change any more.
	finished bool
}

// row is one label set with its counters.
type row struct {
	labels  string // as between braces
	values  [counters]uint64
	used    [counters]bool
	hists   [histograms]*distribution
	changed time.Time
	inEnvoy int // series of Envoy that are added to it
	evicted bool
}

// distribution is a histogram: cumulative buckets, the last of which counts all.
type distribution struct {
	bounds  []string
	buckets []uint64
	sum     float64
}

func newStore(most int) *store {
	return &store{max: most, rows: map[string]*row{}, byInput: map[string]*row{}, overflow: map[reporter]*row{}}
}

// setOwn sets the workload of the host. Rows with the labels of another one stay for as long as
// other rows without a change do. s.mu is held.
func (s *store) setOwn(own Workload) {
	if own != s.own {
		s.own = own
		s.ownChanges++
		clear(s.byInput)
	}
}

// rowOf finds or makes the row of a label set. s.mu is held.
func (s *store) rowOf(now time.Time, o *observed) *row {
	var buf [1024]byte
	text := appendLabels(buf[:0], o.complete(s.own))
	if r := s.rows[string(text)]; r != nil {
		return r
	}
	if len(s.rows) >= s.max && s.evict(now, idleTimeFull) == 0 {
		s.overflowed++
		return s.overflowRow(o.reporter)
	}
	r := &row{labels: string(text), changed: now}
	s.rows[r.labels] = r
	s.sorted = nil
	return r
}

// overflowRow counts what has no row of its own. s.mu is held.
func (s *store) overflowRow(side reporter) *row {
	if r := s.overflow[side]; r != nil {
		return r
	}
	o := observed{reporter: side}
	labels := o.complete(Workload{})
	for i := range labels {
		if labels[i].name != inReporter {
			labels[i].value = "overflow"
		}
	}
	r := &row{labels: string(appendLabels(nil, labels))}
	s.overflow[side] = r
	s.sorted = nil
	return r
}

// evict removes the rows that nothing in Envoy refers to and that did not change for a time. It
// returns their number. s.mu is held.
func (s *store) evict(now time.Time, idle time.Duration) (n int) {
	for key, r := range s.rows {
		if r.inEnvoy == 0 && now.Sub(r.changed) >= idle {
			r.evicted = true
			delete(s.rows, key)
			n++
		}
	}
	if n > 0 {
		s.sorted = nil
	}
	return n
}

// rowByInput finds the row of an input by its key, which must be different for different
// inputs. s.mu is held.
func (s *store) rowByInput(now time.Time, key []byte, o *observed) *row {
	if r := s.byInput[string(key)]; r != nil && !r.evicted {
		return r
	}
	r := s.rowOf(now, o)
	if len(s.byInput) >= 2*s.max {
		clear(s.byInput)
	}
	s.byInput[string(key)] = r
	return r
}

func (r *row) add(now time.Time, c counter, n uint64) {
	r.used[c] = true
	r.values[c] += n
	if n > 0 {
		r.changed = now
	}
}

// addBuckets adds the differences of a histogram. If its bounds are others than before, it
// starts anew.
func (r *row) addBuckets(now time.Time, h histogram, bounds []string, buckets []uint64, sum float64) {
	d := r.hists[h]
	if d == nil || !slices.Equal(d.bounds, bounds) {
		d = &distribution{bounds: bounds, buckets: make([]uint64, len(bounds))}
		r.hists[h] = d
	}
	for i, n := range buckets {
		d.buckets[i] += n
	}
	d.sum += sum
	if buckets[len(buckets)-1] > 0 {
		r.changed = now
	}
}

// observe adds one value to a histogram with Istio's bounds.
func (r *row) observe(now time.Time, h histogram, bounds []string, limits []float64, value float64) {
	d := r.hists[h]
	if d == nil || len(d.bounds) != len(bounds) {
		d = &distribution{bounds: bounds, buckets: make([]uint64, len(bounds))}
		r.hists[h] = d
	}
	for i := len(limits) - 1; i >= 0 && value <= limits[i]; i-- {
		d.buckets[i]++
	}
	d.sum += value
	r.changed = now
}

// size is the number of label sets, and how many found no place since the start.
func (s *store) size() (rows int, overflowed uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows), s.overflowed
}

// snapshot are all rows, sorted.
func (s *store) snapshot() []*row {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sorted == nil {
		s.sorted = make([]*row, 0, len(s.rows)+len(s.overflow))
		for _, r := range s.rows {
			s.sorted = append(s.sorted, r)
		}
		for _, r := range s.overflow {
			s.sorted = append(s.sorted, r)
		}
		slices.SortFunc(s.sorted, func(a, b *row) int { return strings.Compare(a.labels, b.labels) })
	}
	return s.sorted
}

// rowsAtATime is how many rows are copied before they are written.
const rowsAtATime = 16

// writeTo writes all rows in Prometheus's text format. A slow reader does not block the store.
func (s *store) writeTo(w io.Writer) error {
	rows := s.snapshot()
	var buf []byte
	families := func(name, kind string, appendRow func(b []byte, name string, r *row) []byte) error {
		typed := false
		for part := range slices.Chunk(rows, rowsAtATime) {
			buf = buf[:0]
			s.mu.Lock()
			for _, r := range part {
				before := len(buf)
				buf = appendRow(buf, name, r)
				if !typed && len(buf) > before {
					typed = true
					buf = slices.Insert(buf, before, []byte("# TYPE "+name+" "+kind+"\n")...)
				}
			}
			s.mu.Unlock()
			if _, err := w.Write(buf); err != nil {
				return err //nolint:wrapcheck // it is the caller's
			}
		}
		return nil
	}
	for c, name := range counterNames() {
		err := families(name, "counter", func(b []byte, name string, r *row) []byte {
			if !r.used[c] {
				return b
			}
			return appendSeries(b, name, "", r.labels, "", strconv.AppendUint(nil, r.values[c], 10))
		})
		if err != nil {
			return err
		}
	}
	for h, name := range histogramNames() {
		err := families(name, "histogram", func(b []byte, name string, r *row) []byte {
			if r.hists[h] == nil {
				return b
			}
			return r.hists[h].append(b, name, r.labels)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *distribution) append(b []byte, name, labels string) []byte {
	var number [32]byte
	for i, n := range d.buckets {
		b = appendSeries(b, name, "_bucket", labels, d.bounds[i], strconv.AppendUint(number[:0], n, 10))
	}
	b = appendSeries(b, name, "_sum", labels, "", strconv.AppendFloat(number[:0], d.sum, 'g', -1, 64))
	return appendSeries(b, name, "_count", labels, "", strconv.AppendUint(number[:0], d.buckets[len(d.buckets)-1], 10))
}

func appendSeries(b []byte, name, suffix, labels, le string, value []byte) []byte {
	b = append(b, name...)
	b = append(b, suffix...)
	b = append(b, '{')
	b = append(b, labels...)
	if le != "" {
		if labels != "" {
			b = append(b, ',')
		}
		b = append(b, `le="`...)
		b = append(b, le...)
		b = append(b, '"')
	}
	b = append(b, "} "...)
	b = append(b, value...)
	return append(b, '\n')
}

// isStored reports whether a name is that of a family of the store.
func isStored(name []byte) bool {
	if !bytes.HasPrefix(name, []byte("istio_")) {
		return false
	}
	for _, n := range counterNames() {
		if string(name) == n {
			return true
		}
	}
	for _, n := range histogramNames() {
		if rest, ok := bytes.CutPrefix(name, []byte(n)); ok && isPart(rest) {
			return true
		}
	}
	return false
}

func isPart(suffix []byte) bool {
	switch string(suffix) {
	case "", "_bucket", "_sum", "_count":
		return true
	}
	return false
}
