package relay

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/xds/stream"
)

// storeMagic begins a store: format and its version. In stores of version 1, which
// are read, route tables are whole; who wrote those cannot read later ones, which
// have virtual hosts by themselves.
const (
	storeMagic  = "fairlead relay 2\n"
	storeMagic1 = "fairlead relay 1\n"
)

// maxStore bounds what is read of a store.
const maxStore = 1 << 30

// errNoStore says that nothing was stored yet.
var errNoStore = errors.New("nothing is stored")

// resources are resources by type. The sets are shared with generations.
type resources map[stream.TypeURL]*stream.Set

// state is what Envoy has accepted, with all that a relay needs to start from
// it. Immutable once it is handed on.
type state struct {
	// Who is the workload it belongs to.
	Who string `json:"who"`
	// EnvoyVersion is what accepted it.
	EnvoyVersion string `json:"envoy_version"`
	// Generation is the server's name for what was accepted last.
	Generation string    `json:"generation"`
	SavedAt    time.Time `json:"saved_at"`
	// Wants are what Envoy asks for, by type.
	Wants map[stream.TypeURL]stream.Want `json:"wants"`
	// Types are the types of the resources, in the order in which they follow.
	Types []stream.TypeURL `json:"types"`

	resources resources
}

func (s *state) count() int {
	n := 0
	for _, set := range s.resources {
		n += set.Len()
	}
	return n
}

// encode is the store's content: magic, SHA-256 of all that follows, then the
// state as JSON and the resources of each type as a response, each behind its
// length. It is in pieces, most of which are the resources' own bytes: the state
// of a big mesh is not held twice to be written.
func (s *state) encode() ([][]byte, error) {
	s.Types = slices.Sorted(maps.Keys(s.resources))
	head, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding the accepted state: %w", err)
	}
	out := [][]byte{[]byte(storeMagic), nil}
	out = appendBlock(out, [][]byte{head}, len(head))
	for _, t := range s.Types {
		r := &stream.Response{TypeURL: t, Resources: slices.Collect(s.resources[t].All())}
		out = appendBlock(out, r.AppendBuffers(nil), r.Size())
	}
	sum := sha256.New()
	for _, b := range out[2:] {
		sum.Write(b)
	}
	out[1] = sum.Sum(nil)
	return out, nil
}

func appendBlock(to, pieces [][]byte, size int) [][]byte {
	to = append(to, binary.BigEndian.AppendUint64(nil, uint64(size)))
	return append(to, pieces...)
}

func cutBlock(b []byte) (block, rest []byte, err error) {
	const size = 8
	if len(b) < size {
		return nil, nil, io.ErrUnexpectedEOF
	}
	n := binary.BigEndian.Uint64(b)
	if b = b[size:]; n > uint64(len(b)) {
		return nil, nil, io.ErrUnexpectedEOF
	}
	return b[:n], b[n:], nil
}

func decodeStore(b []byte) (*state, error) {
	rest, ok := bytes.CutPrefix(b, []byte(storeMagic))
	if !ok {
		if rest, ok = bytes.CutPrefix(b, []byte(storeMagic1)); !ok {
			return nil, errors.New("not a store of this version")
		}
	}
	if len(rest) < sha256.Size {
		return nil, io.ErrUnexpectedEOF
	}
	sum, rest := [sha256.Size]byte(rest[:sha256.Size]), rest[sha256.Size:]
	if sha256.Sum256(rest) != sum {
		return nil, errors.New("its checksum is wrong")
	}
	head, rest, err := cutBlock(rest)
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(head, &s); err != nil {
		return nil, err
	}
	s.resources = resources{}
	for _, t := range s.Types {
		var block []byte
		if block, rest, err = cutBlock(rest); err != nil {
			return nil, err
		}
		var m discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(block, &m); err != nil {
			return nil, err
		}
		of := make([]*stream.Resource, 0, len(m.GetResources()))
		for _, r := range m.GetResources() {
			of = append(of, stream.NewResource(t, stream.Resource{Name: r.GetName(), Version: r.GetVersion(), Body: r.GetResource().GetValue()}))
		}
		s.resources[t] = stream.NewSet(of)
	}
	return &s, nil
}

func readStore(path string) (*state, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoStore
	}
	if err != nil {
		return nil, fmt.Errorf("reading the accepted state: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxStore))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("reading the accepted state: %w", err)
	}
	s, err := decodeStore(b)
	if err != nil {
		return nil, fmt.Errorf("reading the accepted state %q: %w", path, err)
	}
	return s, nil
}

func setAside(path string) (string, error) {
	aside := path + ".unusable"
	return aside, os.Rename(path, aside)
}

// writeStore replaces the store: after a crash at any moment it is the old one
// or the new one.
func writeStore(path string, s *state) (size int, err error) {
	b, err := s.encode()
	if err != nil {
		return 0, err
	}
	for _, piece := range b {
		size += len(piece)
	}
	if err := durable.WriteBuffers(durable.OS{}, path, b, 0o600); err != nil {
		return size, fmt.Errorf("writing the accepted state: %w", err)
	}
	return size, nil
}

// written says whether a write succeeded, how many bytes it had and how long it
// took.
type written struct {
	err  error
	size int
	took time.Duration
}

// writer writes states to disk, one at a time, so that nobody waits for a disk.
type writer struct {
	path string
	log  *slog.Logger
	in   chan *state  // holds one
	done chan written // holds one: what became of the state taken last
}

// run writes until in is closed and empty.
func (w *writer) run() {
	failing := time.Time{}
	for s := range w.in {
		began := time.Now()
		size, err := writeStore(w.path, s)
		switch {
		case err != nil && failing.IsZero():
			failing = began
			w.log.Error("saving the accepted configuration failed (a restart without a control plane would use an older one), retrying",
				"path", w.path, "err", err)
		case err == nil && !failing.IsZero():
			w.log.Info("saving the accepted configuration works again", "path", w.path, "lasted", time.Since(failing).Round(time.Second).String())
			failing = time.Time{}
		}
		select {
		case w.done <- written{err, size, time.Since(began)}:
		default:
		}
	}
}
