package manifest

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/mesh"
)

// hashOf is the hash of an object's content: everything but where it is written.
func hashOf(meta *mesh.Meta, spec proto.Message) mesh.Hash {
	h := sha256.New()
	put := func(s string) { putBytes(h, []byte(s)) }
	put(string(meta.Kind))
	put(meta.Namespace)
	put(meta.Name)
	for _, m := range []map[string]string{meta.Labels, meta.Annotations} {
		keys := sortedKeys(m)
		put(strconv.Itoa(len(keys)))
		for _, k := range keys {
			put(k)
			put(m[k])
		}
	}
	put(meta.Created.Format(time.RFC3339Nano))
	// The message cannot fail to marshal: it was made from valid text.
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		put(err.Error())
	}
	putBytes(h, raw)
	return mesh.Hash(h.Sum(nil))
}

// putBytes writes a value with its length, so that neighbours cannot run into
// one another.
func putBytes(h hash.Hash, b []byte) {
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(b)))
	_, _ = h.Write(size[:])
	_, _ = h.Write(b)
}
