package relay

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead/fairlead/xds/stream"
)

func sampleState() *state {
	return &state{
		Who: "sidecar~127.0.0.1~a.b~b.svc.cluster.local b/a", EnvoyVersion: "1.40.0", Generation: "7",
		Wants: map[stream.TypeURL]stream.Want{stream.ClusterType: {All: true}, stream.EndpointType: {Names: []string{"x", "y"}}},
		resources: resources{
			stream.ClusterType: stream.NewSet([]*stream.Resource{
				stream.NewResource(stream.ClusterType, stream.Resource{Name: "x", Version: "1", Body: []byte("one")}),
				stream.NewResource(stream.ClusterType, stream.Resource{Name: "y", Version: "2", Body: []byte("two")}),
			}),
			stream.ListenerType: stream.NewSet(nil),
		},
	}
}

// sets are compared by what is in them.
var sets = cmp.Transformer("set", func(s *stream.Set) []*stream.Resource { return slices.Collect(s.All()) })

func TestStoreRoundTrip(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store")
	if _, err := readStore(path); !errors.Is(err, errNoStore) {
		t.Errorf("readStore of nothing = %v", err)
	}
	want := sampleState()
	size, err := writeStore(path, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readStore(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(state{}), cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(stream.Resource{}), sets); diff != "" {
		t.Errorf("after a round trip (-want +got):\n%s", diff)
	}
	// A type of which nothing was accepted is known to have nothing.
	if _, ok := got.resources[stream.ListenerType]; !ok {
		t.Error("an empty type was forgotten")
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 || fi.Size() != int64(size) {
		t.Errorf("the store is %v, %v; written were %d bytes", fi, err, size)
	}
}

// A mesh that changes all the time is written at a limited rate, whatever its size; a slow
// disk is not kept busy.
func TestStoreWriteRateIsLimited(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		w    written
		want time.Duration // with nothing left of the credit
	}{
		"small":  {written{nil, 1 << 10, 0}, time.Second / 512},
		"large":  {written{nil, 2 << 20, 10 * time.Millisecond}, 4 * time.Second},
		"huge":   {written{nil, maxStore, time.Second}, time.Duration(maxStore/saveRate) * time.Second},
		"slow":   {written{nil, 1000, time.Second}, saveShare * time.Second},
		"failed": {written{errors.New("disk full"), 1000, 0}, retryInterval},
	} {
		if got := saveAfter(now, now, c.w).Sub(now); got != c.want {
			t.Errorf("%s: the next write comes after %v, want %v", name, got, c.want)
		}
	}
}

// TestFirstConfigurationIsWrittenAtOnce has a slow disk: the steps in which an Envoy accepts
// its first configuration are written without delay, and endless changes take their share of
// the time and no more.
func TestFirstConfigurationIsWrittenAtOnce(t *testing.T) {
	t.Parallel()
	const took = 100 * time.Millisecond
	began := time.Now()
	now, allowed, at := began, time.Time{}, []time.Duration{}
	for range 1000 {
		if now = now.Add(saveInterval); now.Before(allowed) {
			now = allowed
		}
		at = append(at, now.Sub(began))
		now = now.Add(took)
		allowed = saveAfter(now, allowed, written{nil, 1000, took})
	}
	if at[4]-at[0] > 4*(took+saveInterval) {
		t.Errorf("five steps were written %v after the first", at[4])
	}
	if busy := time.Duration(len(at)) * took; at[len(at)-1] < saveShare*busy-saveCredit-saveShare*took {
		t.Errorf("writing took %v of %v", busy, at[len(at)-1])
	}
}

// TestStoreDamaged cuts a store at every byte and changes every byte of it, as a disk might:
// none of the results is accepted.
func TestStoreDamaged(t *testing.T) {
	t.Parallel()
	pieces, err := sampleState().encode()
	b := slices.Concat(pieces...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeStore(b); err != nil {
		t.Fatalf("the store that is damaged is not good: %v", err)
	}
	for i := range b {
		if _, err := decodeStore(b[:i]); err == nil {
			t.Errorf("believed when cut at byte %d of %d", i, len(b))
		}
		spoiled := bytes.Clone(b)
		spoiled[i] ^= 0x40
		if _, err := decodeStore(spoiled); err == nil {
			t.Errorf("believed with byte %d spoiled", i)
		}
	}
}

// TestStoreSurvivesACrash starts with the files that a killed writer leaves.
func TestStoreSurvivesACrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "store")
	if _, err := writeStore(path, sampleState()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".tmp-store-1"), []byte(storeMagic), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := readStore(path); err != nil || s.Generation != "7" {
		t.Errorf("readStore = %+v, %v", s, err)
	}
}

func FuzzStore(f *testing.F) {
	pieces, err := sampleState().encode()
	b := slices.Concat(pieces...)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeStore(b)
		if err != nil {
			return
		}
		if _, err := s.encode(); err != nil {
			t.Errorf("what was read cannot be written: %v", err)
		}
	})
}
