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
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/xds/stream"
)

// storeMagic begins a store: format and its version.
const storeMagic = "fairlead relay 1\n"

// maxStore bounds what is read of a store.
const maxStore = 1 << 30

// errNoStore says that nothing was stored yet.
var errNoStore = errors.New("nothing is stored")

// resources are resources by type and name.
type resources map[stream.TypeURL]map[string]*stream.Resource

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

// layer is the resources as a generation has them.
func (r resources) layer() *stream.Layer {
	l := &stream.Layer{Types: map[stream.TypeURL]*stream.Set{}}
	for url, of := range r {
		l.Types[url] = stream.NewSet(slices.Collect(maps.Values(of)))
	}
	return l
}

func (s *state) count() int {
	n := 0
	for _, m := range s.resources {
		n += len(m)
	}
	return n
}

// encode is the store's content: magic, SHA-256 of all that follows, then the
// state as JSON and the resources of each type as a response, each behind its
// length.
func (s *state) encode() ([]byte, error) {
	s.Types = slices.Sorted(maps.Keys(s.resources))
	head, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding the accepted state: %w", err)
	}
	body := appendBlock(nil, head)
	for _, t := range s.Types {
		m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: string(t)}
		for _, name := range slices.Sorted(maps.Keys(s.resources[t])) {
			r := s.resources[t][name]
			m.Resources = append(m.Resources, &discoveryv3.Resource{
				Name: name, Version: r.Version, Resource: &anypb.Any{TypeUrl: string(t), Value: r.Body},
			})
		}
		b, err := proto.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("encoding the accepted state: %w", err)
		}
		body = appendBlock(body, b)
	}
	sum := sha256.Sum256(body)
	return slices.Concat([]byte(storeMagic), sum[:], body), nil
}

func appendBlock(to, b []byte) []byte {
	to = binary.BigEndian.AppendUint64(to, uint64(len(b)))
	return append(to, b...)
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
		return nil, errors.New("not a store of this version")
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
		of := make(map[string]*stream.Resource, len(m.GetResources()))
		for _, r := range m.GetResources() {
			of[r.GetName()] = stream.NewResource(t, stream.Resource{Name: r.GetName(), Version: r.GetVersion(), Body: r.GetResource().GetValue()})
		}
		s.resources[t] = of
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
func writeStore(path string, s *state) error {
	b, err := s.encode()
	if err != nil {
		return err
	}
	if err := durable.WriteFile(durable.OS{}, path, b, 0o600); err != nil {
		return fmt.Errorf("writing the accepted state: %w", err)
	}
	return nil
}

// written says whether a write succeeded and how long it took.
type written struct {
	ok   bool
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
	for s := range w.in {
		began := time.Now()
		err := writeStore(w.path, s)
		if err != nil {
			w.log.Error("the accepted configuration is not on disk: a restart without a server would serve an older one",
				"path", w.path, "err", err)
		}
		select {
		case w.done <- written{err == nil, time.Since(began)}:
		default:
		}
	}
}
