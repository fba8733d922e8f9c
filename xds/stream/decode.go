package stream

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// Field numbers of DeltaDiscoveryRequest (envoy/service/discovery/v3/discovery.proto).
const (
	requestNode        = 1
	requestType        = 2
	requestSubscribe   = 3
	requestUnsubscribe = 4
	requestVersions    = 5
	mapKey             = 1
	mapValue           = 2
)

var errNotText = errors.New("a name that is not UTF-8")

// maxNode bounds the encoding of a node, in bytes. Envoy's takes a tenth of it, mostly a
// list of its extensions.
const maxNode = 256 << 10

// Frame is an encoded message, in buffers that are used again for another message: what
// is decoded from it refers to none of them.
type Frame [][]byte

// DecodeRequest decodes a request. Unlike proto.Unmarshal, it makes no map, and copies no
// name or version that the generation has: a peer that reconnects lists thousands of them,
// and thousands of peers reconnect at once. The generation may be nil. The node is left
// out; see [DecodeNode]. More than maxNames names or versions are an error.
func DecodeRequest(frame Frame, g *Generation, maxNames int) (*Request, error) {
	l := requestFields{fields: fields{frame: frame}, known: knownNames{set: g.hinted(frame)}, most: maxNames, lists: takeLists()}
	req := &discovery.DeltaDiscoveryRequest{}
	err := l.read()
	if err == nil {
		err = proto.Unmarshal(l.rest, req)
	}
	if err != nil {
		l.lists.release()
		return nil, fmt.Errorf("decoding a request: %w", err)
	}
	req.ResourceNamesSubscribe, req.ResourceNamesUnsubscribe = l.lists.subscribe, l.lists.unsubscribe
	return &Request{DeltaDiscoveryRequest: req, Versions: l.lists.versions, lists: l.lists, known: l.known.set}, nil
}

// hinted is the set of the type of a request, or of another type if the request has
// several: it is only used to find names.
func (g *Generation) hinted(frame Frame) *mergedSet {
	for f := (fields{frame: frame}); g != nil && !f.end(); {
		num, content, isBytes, err := f.next()
		if err != nil {
			return nil
		}
		if isBytes && num == requestType {
			return g.merged(TypeURL(content))
		}
	}
	return nil
}

// DecodeNode decodes the node of a request and nothing else; nil if there is none.
func DecodeNode(frame Frame) (*corev3.Node, error) {
	var out *corev3.Node
	for f := (fields{frame: frame}); !f.end(); {
		num, content, isBytes, err := f.next()
		if err != nil {
			return nil, fmt.Errorf("decoding a request: %w", err)
		}
		if num != requestNode || !isBytes {
			continue
		}
		if len(content) > maxNode {
			return nil, fmt.Errorf("a node of %d bytes, at most %d: %w", len(content), maxNode, ErrLimit)
		}
		if out == nil {
			out = &corev3.Node{}
		}
		merge := proto.UnmarshalOptions{Merge: true} // as protobuf does with a field that occurs twice
		if err := merge.Unmarshal([]byte(content), out); err != nil {
			return nil, fmt.Errorf("decoding the node of a request: %w", err)
		}
	}
	return out, nil
}

// requestFields reads the fields of a request: the long lists, and the rest.
type requestFields struct {
	fields
	known knownNames
	most  int // names in a list
	lists *requestLists
	rest  []byte // all other fields
}

func (l *requestFields) read() error {
	for !l.end() {
		num, content, isBytes, err := l.next()
		switch {
		case err != nil:
			return err
		case isBytes && num == requestNode:
		case isBytes && num == requestVersions:
			v, err := l.versionOf(content)
			if err != nil {
				return err
			}
			l.lists.versions = append(l.lists.versions, v)
			err = l.within(len(l.lists.versions))
			if err != nil {
				return err
			}
		case isBytes && num == requestSubscribe:
			if l.lists.subscribe, err = l.appendName(l.lists.subscribe, content); err != nil {
				return err
			}
		case isBytes && num == requestUnsubscribe:
			if l.lists.unsubscribe, err = l.appendName(l.lists.unsubscribe, content); err != nil {
				return err
			}
		default:
			l.rest = append(l.rest, l.field()...)
		}
	}
	return nil
}

func (l *requestFields) within(n int) error {
	if n > l.most {
		return fmt.Errorf("more than %d names: %w", l.most, ErrLimit)
	}
	return nil
}

func (l *requestFields) appendName(list []string, content string) ([]string, error) {
	name, err := l.known.name(content)
	if err != nil {
		return nil, err
	}
	list = append(list, name)
	return list, l.within(len(list))
}

// versionOf reads one entry of the map initial_resource_versions.
func (l *requestFields) versionOf(entry string) (v Version, err error) {
	num, name, at := simpleField(entry, 0)
	other, version, end := simpleField(entry, at)
	if at > 0 && end == len(entry) && num == mapKey && other == mapValue { // nearly all
		return l.known.version(name, version)
	}
	name, version = "", ""
	for f := (fields{text: entry}); !f.end(); {
		num, content, isBytes, err := f.next()
		if err != nil {
			return v, err
		}
		if !isBytes || num != mapKey && num != mapValue {
			continue
		}
		at := &name
		if num == mapValue {
			at = &version
		}
		if !utf8.ValidString(*at) { // it occurs twice
			return v, errNotText
		}
		*at = content
	}
	return l.known.version(name, version)
}

// knownNames copies names and versions out of a frame, except those that a set has, too.
type knownNames struct {
	set    *mergedSet
	looked int // how often
	lookUp func(name string) (*Resource, int)
}

// fewNames is how many names are looked up without an index.
const fewNames = 32

// find returns the resource with a name, or nil; and its index plus 1, or 0 if that is not
// known.
func (k *knownNames) find(name string) (r *Resource, index int32) {
	k.looked++
	if k.looked <= fewNames {
		return k.set.get(name), 0
	}
	if k.lookUp == nil {
		k.lookUp, _ = k.set.lookUp()
	}
	r, i := k.lookUp(name)
	if r == nil {
		return nil, 0
	}
	return r, int32(i) + 1
}

func (k *knownNames) name(text string) (string, error) {
	if r, _ := k.find(text); r != nil {
		return r.Name, nil
	}
	return copyText(text)
}

func (k *knownNames) version(name, version string) (v Version, err error) {
	r, index := k.find(name)
	v.index = index
	if r != nil && r.Version == version {
		v.Name, v.Version = r.Name, r.Version
		return v, nil
	}
	if r != nil {
		v.Name = r.Name
	} else if v.Name, err = copyText(name); err != nil {
		return v, err
	}
	v.Version, err = copyText(version)
	return v, err
}

func copyText(text string) (string, error) {
	if !utf8.ValidString(text) {
		return "", errNotText
	}
	return strings.Clone(text), nil
}

// requestLists are the lists of a request, whose memory is used again.
type requestLists struct {
	subscribe, unsubscribe []string
	versions               []Version
}

// maxPooledNames bounds the lists that are kept.
const maxPooledNames = 16 << 10

var listPool = sync.Pool{New: func() any { return new(requestLists) }} //nolint:gochecknoglobals // memory for requests of all streams

func takeLists() *requestLists {
	l, _ := listPool.Get().(*requestLists)
	return l
}

func (l *requestLists) release() {
	if max(cap(l.subscribe), cap(l.unsubscribe), cap(l.versions)) > maxPooledNames {
		return
	}
	clear(l.subscribe) // do not keep the names
	clear(l.unsubscribe)
	clear(l.versions)
	l.subscribe, l.unsubscribe, l.versions = l.subscribe[:0], l.unsubscribe[:0], l.versions[:0]
	listPool.Put(l)
}
