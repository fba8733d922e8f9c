package manifest

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/mesh"
)

// hashOf is the hash of an object's content: everything but where it is written.
func hashOf(meta *mesh.Meta, spec proto.Message) mesh.Hash {
	text := hashed(make([]byte, 0, 512))
	text.put(string(meta.Kind))
	text.put(meta.Namespace)
	text.put(meta.Name)
	for _, m := range [...]map[string]string{meta.Labels, meta.Annotations} {
		text.put(strconv.Itoa(len(m)))
		for _, k := range sortedKeys(m) {
			text.put(k)
			text.put(m[k])
		}
	}
	text.put(meta.Created.Format(time.RFC3339Nano))
	// The message cannot fail to marshal: it was made from valid text.
	size := len(text)
	text = binary.BigEndian.AppendUint64(text, 0)
	if raw, err := (proto.MarshalOptions{Deterministic: true}).MarshalAppend(text, spec); err == nil {
		text = raw
	} else {
		text = append(text, err.Error()...)
	}
	binary.BigEndian.PutUint64(text[size:], uint64(len(text)-size-8))
	return sha256.Sum256(text)
}

// hashOfKey is the hash of an object whose age is that of its key.
func hashOfKey(h mesh.Hash, createIndex uint64) mesh.Hash {
	return sha256.Sum256(binary.BigEndian.AppendUint64(h[:], createIndex))
}

// hashed is a text that is to be hashed.
type hashed []byte

// put writes a value with its length, so that neighbours cannot run into one
// another.
func (h *hashed) put(s string) {
	*h = append(binary.BigEndian.AppendUint64(*h, uint64(len(s))), s...)
}
