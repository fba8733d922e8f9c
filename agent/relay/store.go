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

// storeMagic begins a store: the format and its version. Version 1 can be read; its route
// configurations have all virtual hosts inline. A release that writes version 1 cannot read
// version 2, in which virtual hosts are separate resources.
const (
	storeMagic  = "fairlead relay 2\n"
	storeMagic1 = "fairlead relay 1\n"
)

// maxStore bounds what is read of a store.
const maxStore = 1 << 30

// errNoStore means that nothing was stored yet.
var errNoStore = errors.New("nothing is stored")

// resources are resources by type. The sets are shared with generations.
type resources map[stream.TypeURL]*stream.Set

// state is what Envoy has accepted, with everything that a relay needs to start from it. It is
// immutable once it is given to the writer.
type state struct {
	// Who is the workload that the state belongs to.
	Who string `json:"who"`
	// EnvoyVersion is the release of Envoy that accepted it.
	EnvoyVersion string `json:"envoy_version"`
	// Generation is the server's name of the generation that was accepted last.
	Generation string    `json:"generation"`
	SavedAt    time.Time `json:"saved_at"`
	// Refused are those of the resources that the newest Envoy rejects, which it or another one
	// accepted before. An earlier release of the agent ignores this: to it they are accepted.
	Refused []Rejection `json:"refused,omitempty"`
	// Wants are the subscriptions of Envoy, by type.
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

// encode returns the content of the store: magic, SHA-256 of everything after it, the state as
// JSON, and the resources of each type as a response; each block has its length before it. The
// result is a list of buffers, most of which are the resources' own bytes, so that the state
// of a large mesh is not copied to be written.
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

// writeStore replaces the store. After a crash at any moment the store is the old one or the
// new one.
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

// written is the result of a write.
type written struct {
	err  error
	size int
	took time.Duration
}

// writer writes states to disk, one at a time, so that no other goroutine waits for the disk.
type writer struct {
	path string
	// release is the release of Envoy that accepted what is in the store; empty if there is none
	// or it is not known. Owned by run.
	release string
	log     *slog.Logger
	in      chan *state  // capacity one
	done    chan written // capacity one: the result of the last write
}

// write replaces the store. What another release of Envoy accepted stays beside it.
func (w *writer) write(s *state) (int, error) {
	if w.release != "" && s.release() != "" && w.release != s.release() {
		if err := keepStore(w.path, w.release); err != nil {
			return 0, err
		}
	}
	size, err := writeStore(w.path, s)
	if err == nil {
		w.release = s.release()
	}
	return size, err
}

// run writes until in is closed and empty.
func (w *writer) run() {
	failing := time.Time{}
	for s := range w.in {
		began := time.Now()
		size, err := w.write(s)
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
