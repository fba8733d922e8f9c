package picture

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// version is that of the format. Another one counts as no picture.
	version = 1
	// maxFile bounds one file, maxService what one service comes to in it, in
	// bytes.
	maxFile    = 64 << 20
	maxService = 64 << 20
)

// stored is one service in a file.
type stored struct {
	Key
	Protocol string `json:"protocol,omitempty"`
	// Entries is compressed JSON: the instances of a service differ in little.
	Entries []byte `json:"entries"`
}

func (s *stored) equal(o *stored) bool {
	return s != nil && o != nil && s.Key == o.Key && s.Protocol == o.Protocol && bytes.Equal(s.Entries, o.Entries)
}

// compressors are reused: each has more memory than what it writes.
type compressors struct{ pool sync.Pool }

// encode makes what is stored of a service.
func (c *compressors) encode(key Key, svc Service) (*stored, error) {
	entries := make([]*api.ServiceEntry, 0, len(svc.Entries))
	for _, e := range svc.Entries {
		if e != nil {
			entries = append(entries, slim(e))
		}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, err
	}
	if len(text) > maxService {
		return nil, fmt.Errorf("longer than %d bytes", maxService)
	}
	var out bytes.Buffer
	w, ok := c.pool.Get().(*flate.Writer)
	if ok {
		w.Reset(&out)
	} else if w, err = flate.NewWriter(&out, flate.BestSpeed); err != nil {
		return nil, err
	}
	defer c.pool.Put(w)
	if _, err = w.Write(text); err == nil {
		err = w.Close()
	}
	return &stored{Key: key, Protocol: svc.Protocol, Entries: bytes.Clone(out.Bytes())}, err
}

func (s *stored) decode() (Service, error) {
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(s.Entries)), maxService+1))
	if err != nil {
		return Service{}, err
	}
	if len(text) > maxService {
		return Service{}, fmt.Errorf("longer than %d bytes", maxService)
	}
	out := Service{Protocol: s.Protocol}
	err = json.Unmarshal(text, &out.Entries)
	return out, err
}

// file is the content of one file.
type file struct {
	Version  int       `json:"version"`
	Of       string    `json:"of"`
	Services []*stored `json:"services,omitempty"`
	// Read is when the whole picture was last known to be true; in the file of
	// that name only.
	Read time.Time `json:"read,omitzero"`
}

// errOther says that a file is of another picture, or of another release.
var errOther = errors.New("of another picture")

// seal writes a file below its hash.
func seal(f *file) ([][]byte, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	line := sumLine(body)
	if len(line)+len(body) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	return [][]byte{line, body}, nil
}

func sumLine(body []byte) []byte {
	sum := sha256.Sum256(body)
	return []byte("sha256:" + hex.EncodeToString(sum[:]) + "\n")
}

// unseal reads a file of a picture.
func unseal(data []byte, of string) (*file, error) {
	at := bytes.IndexByte(data, '\n') + 1
	if at == 0 || !bytes.Equal(data[:at], sumLine(data[at:])) {
		return nil, errors.New("damaged: the hash is not that of the content")
	}
	var f file
	if err := json.Unmarshal(data[at:], &f); err != nil {
		return nil, err
	}
	if f.Version != version || f.Of != of {
		return nil, errOther
	}
	return &f, nil
}
