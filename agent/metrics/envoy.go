package metrics

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"time"
)

// envoyPrefix begins the names of Envoy's counters of requests: Envoy adds "envoy_" to the
// prefix of the stats access logger.
const envoyPrefix = "envoy_istio_"

// series is a label set of Envoy, with the values that were read last.
type series struct {
	row        *row
	labels     string
	side       reporter
	generation uint64 // of the reading that saw it last
	requests   uint64
	hists      [histograms]*reading
}

// reading is a histogram as it was read.
type reading struct {
	buckets []uint64 // the last counts all
	sum     float64
}

// intake takes Envoy's counters of requests, line by line, and adds differences to the store.
// One goroutine at a time reads.
type intake struct {
	store     *store
	uncounted *uncounted
	// maxSeries is how many label sets of Envoy are remembered.
	maxSeries int

	known      map[string]*series
	ownChanges uint64 // of the store, that the rows of known know
	epoch      string // of the Envoy that was read last; another one has other counters
	generation uint64
	bounds     [histograms][]string
	// rest has requests of label sets that are not remembered: now, and in the reading before.
	rest, restBefore map[reporter]uint64
	malformed        uint64

	// Of the current reading.
	now      time.Time
	baseline bool // values are remembered and not added
	// restBaseline is the same for the rest alone.
	restBaseline bool
	previous     *series
	current      *series // whose histogram is being read, or nil
	kind         histogram
	les          [][]byte
	leText       []byte
	buckets      []uint64
	sum          float64
	// broken means that a line of the histogram could not be read.
	broken bool
}

func newIntake(s *store, u *uncounted) *intake {
	return &intake{store: s, uncounted: u, maxSeries: 2 * s.max, known: map[string]*series{}, rest: map[reporter]uint64{}, restBefore: map[reporter]uint64{}}
}

// begin starts a reading. baseline means that what Envoy has counted so far was published by
// an earlier process: only what is new is added.
func (t *intake) begin(now time.Time, epoch string, own Workload, baseline bool) {
	t.now, t.baseline, t.restBaseline, t.previous, t.current = now, baseline, false, nil, nil
	t.generation++
	if t.epoch != epoch {
		t.epoch = epoch
		t.forgetIf(func(*series) bool { return true })
		clear(t.restBefore)
	}
	clear(t.rest)
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	if t.store.setOwn(own); t.ownChanges != t.store.ownChanges {
		t.ownChanges = t.store.ownChanges
		for _, k := range t.known {
			t.detach(k)
		}
	}
}

// end ends a reading; whole means that Envoy's answer was read to its end, so that series that
// were not in it do not exist any more.
func (t *intake) end(whole bool) {
	t.abandon()
	if !whole {
		return
	}
	t.forgetIf(func(k *series) bool { return k.generation != t.generation })
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	for side, n := range t.rest {
		if before := t.restBefore[side]; n > before && !t.baseline && !t.restBaseline {
			t.store.overflowRow(side).add(t.now, requests, n-before)
			t.uncounted.report(side, requestsEnded, n-before)
		}
	}
	t.rest, t.restBefore = t.restBefore, t.rest
	t.restBaseline = false
	t.store.evict(t.now, idleTime)
}

func (t *intake) forgetIf(gone func(*series) bool) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	for key, k := range t.known {
		if gone(k) {
			t.detach(k)
			delete(t.known, key)
		}
	}
}

// detach separates a series from its row. The store's mu is held.
func (t *intake) detach(k *series) {
	if k.row != nil {
		k.row.inEnvoy--
		k.row = nil
	}
}

// take takes a line if it is one of the families of requests.
func (t *intake) take(line []byte) bool {
	if name, ok := bytes.CutPrefix(line, []byte("# TYPE ")); ok {
		name, _, _ = bytes.Cut(name, []byte(" "))
		_, _, ok = family(name)
		return ok
	}
	if !bytes.HasPrefix(line, []byte(envoyPrefix)) {
		return false
	}
	s, ok := parseSample(line)
	if !ok {
		t.malformed++
		return true
	}
	kind, suffix, ok := family(s.name)
	if !ok {
		return false
	}
	if kind < 0 {
		t.abandon()
		t.takeCounter(s)
		return true
	}
	labels, le := s.labels, []byte(nil)
	if suffix == "_bucket" {
		if labels, le, ok = cutBound(labels); !ok {
			t.malformed++
			return true
		}
	}
	t.takeHistogram(kind, suffix, labels, le, s.value)
	return true
}

// family is the histogram, or -1 for the counter, that a name of Envoy belongs to.
func family(name []byte) (kind histogram, suffix string, ok bool) {
	name, ok = bytes.CutPrefix(name, []byte("envoy_"))
	if !ok || !isStored(name) {
		return 0, "", false
	}
	for h, n := range histogramNames() {
		if rest, ok := bytes.CutPrefix(name, []byte(n)); ok {
			return histogram(h), string(rest), true
		}
	}
	return -1, "", string(name) == counterNames()[requests]
}

// cutBound cuts the bound of a bucket from its labels. Envoy writes it last; no value has this
// text, because its quotes are escaped.
func cutBound(labels []byte) (before, le []byte, ok bool) {
	const sign = `le="`
	i := bytes.LastIndex(labels, []byte(sign))
	if i < 0 || i > 0 && labels[i-1] != ',' {
		return nil, nil, false
	}
	le, ok = bytes.CutSuffix(labels[i+len(sign):], []byte(`"`))
	if !ok || !isNumber(le) {
		return nil, nil, false
	}
	return labels[:max(i-1, 0)], le, true
}

func (t *intake) takeCounter(s sample) {
	n, err := strconv.ParseUint(string(s.value), 10, 64)
	if err != nil {
		t.malformed++
		return
	}
	k := t.seriesOf(s.labels, n)
	if k == nil {
		return
	}
	before := k.requests
	k.requests = n
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	r := t.attach(k)
	if t.baseline {
		before = n
	}
	if n < before { // evicted, and back
		before = 0
	}
	r.add(t.now, requests, n-before)
	t.uncounted.report(k.side, requestsEnded, n-before)
}

// attach is the row of a series. The store's mu is held.
func (t *intake) attach(k *series) *row {
	if k.row == nil {
		labels, _ := parseLabels([]byte(k.labels))
		o, _ := observedOf(labels)
		k.row = t.store.rowOf(t.now, &o)
		k.row.inEnvoy++
	}
	return k.row
}

// seriesOf is what is remembered of a label set; nil if it is malformed, or one too many.
// count is the value of a counter of requests.
func (t *intake) seriesOf(labels []byte, count uint64) *series {
	k := t.previous
	if k == nil || k.labels != string(labels) {
		if k = t.known[string(labels)]; k == nil {
			parsed, ok := parseLabels(labels)
			o, known := observedOf(parsed)
			if !ok || !known {
				t.malformed++
				return nil
			}
			if len(t.known) >= t.maxSeries {
				t.rest[o.reporter] += count
				return nil
			}
			k = &series{labels: string(labels), side: o.reporter}
			t.known[k.labels] = k
		}
		t.previous = k
	}
	k.generation = t.generation
	return k
}

// takeHistogram takes one line of a histogram. All lines of one histogram follow each other,
// and the count is the last.
func (t *intake) takeHistogram(kind histogram, suffix string, labels, le, value []byte) {
	k := t.seriesOf(labels, 0)
	if k == nil {
		t.abandon()
		return
	}
	if t.current != k || t.kind != kind {
		t.abandon()
		t.current, t.kind = k, kind
	}
	switch suffix {
	case "_bucket":
		n, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil || len(t.buckets) >= maxBuckets {
			t.broken = true
			return
		}
		at := len(t.leText)
		t.leText = append(t.leText, le...)
		t.les = append(t.les, t.leText[at:])
		t.buckets = append(t.buckets, n)
	case "_sum":
		t.sum, _ = strconv.ParseFloat(string(value), 64) // it is a number
		t.broken = t.broken || math.IsNaN(t.sum) || math.IsInf(t.sum, 0)
	case "_count":
		t.flush()
	}
}

// maxBuckets bounds the buckets of a histogram.
const maxBuckets = 128

// abandon forgets the histogram that is being read, if there is one: its count did not come.
func (t *intake) abandon() {
	if t.current != nil {
		t.malformed++
		t.reset()
	}
}

func (t *intake) reset() {
	t.current, t.les, t.leText, t.buckets, t.sum, t.broken = nil, t.les[:0], t.leText[:0], t.buckets[:0], 0, false
}

// flush adds the histogram that was read.
func (t *intake) flush() {
	k, n := t.current, len(t.buckets)
	if t.broken || n == 0 || string(t.les[n-1]) != "+Inf" || !slices.IsSorted(t.buckets) {
		t.abandon()
		return
	}
	defer t.reset()
	bounds := t.boundsOf()
	before := k.hists[t.kind]
	if before == nil || len(before.buckets) != n {
		before = &reading{buckets: make([]uint64, n)}
	}
	for i := range n {
		if t.buckets[i] < before.buckets[i] { // evicted, and back
			before = &reading{buckets: make([]uint64, n)}
			break
		}
	}
	added := make([]uint64, n)
	for i := range n {
		added[i] = t.buckets[i] - before.buckets[i]
	}
	sum := max(t.sum-before.sum, 0)
	if t.baseline {
		clear(added)
		sum = 0
	}
	k.hists[t.kind] = before
	copy(before.buckets, t.buckets)
	before.sum = t.sum
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	t.attach(k).addBuckets(t.now, t.kind, bounds, added, sum)
}

// boundsOf are the bounds of the histogram that was read, the same slice for all.
func (t *intake) boundsOf() []string {
	have := t.bounds[t.kind]
	same := len(have) == len(t.les)
	for i := 0; same && i < len(have); i++ {
		same = have[i] == string(t.les[i])
	}
	if !same {
		have = make([]string, len(t.les))
		for i, le := range t.les {
			have[i] = string(le)
		}
		t.bounds[t.kind] = have
	}
	return have
}
