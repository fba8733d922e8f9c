package svid

import (
	"fmt"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
)

// Versions are an identity's newest certificate and an older one that is kept
// beside it: the newest may have been signed by a server whose clock is ahead, and
// begin tomorrow.
type Versions struct {
	New *Identity // or nil: there is none yet
	Old *Identity // or nil
}

// At is the identity to use where the clock shows now: the newest that is valid. If
// none is, it is the newest, unless that has ended and the older one ends later: a
// server whose clock was behind signed the newest, and now this host's is ahead.
func (v Versions) At(now time.Time) *Identity {
	switch {
	case v.Old == nil || v.New.validAt(now):
	case v.Old.validAt(now), !now.Before(v.New.NotAfter()) && v.Old.NotAfter().After(v.New.NotAfter()):
		return v.Old
	}
	return v.New
}

// Shown is the identity to show to the control plane, which accepts one that has not
// begun and none that has ended: a server whose clock is behind signs such. If both
// have ended it is the one that ends later.
func (v Versions) Shown(now time.Time) *Identity {
	if v.Old != nil && !now.Before(v.New.NotAfter()) && v.Old.NotAfter().After(v.New.NotAfter()) {
		return v.Old
	}
	return v.New
}

// Add puts a newer identity first. What it replaces is kept, unless only the one
// before that is valid now.
func (v Versions) Add(next *Identity, now time.Time) Versions {
	if v.New == nil {
		return Versions{New: next}
	}
	return Versions{New: next, Old: v.At(now)}
}

// Early reports whether the newest has not begun where the clock shows now.
func (v Versions) Early(now time.Time) bool {
	return v.New != nil && now.Before(v.New.Leaf().NotBefore)
}

func (i *Identity) validAt(now time.Time) bool {
	return !now.Before(i.Leaf().NotBefore) && now.Before(i.Leaf().NotAfter)
}

// Versions gives the identity and the one before it. A previous one that cannot be
// used is left aside; err tells of the newest only, as Load's does.
func (s *HostStore) Versions() (Versions, error) {
	newest, err := s.Load()
	if err != nil {
		return Versions{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	data, _, err := durable.ReadKey(s.PreviousPath(), maxIdentityFile)
	if err != nil {
		return Versions{New: newest}, nil
	}
	old, err := decodeIdentity(data)
	if err != nil || len(old.Certificates) == 0 || old.ID != newest.ID || old.checkKey(newest.PrivateKey) != nil {
		return Versions{New: newest}, nil
	}
	return Versions{New: newest, Old: old}, nil
}

// SavePrevious keeps an identity beside the newest, in a file of its own.
func (s *HostStore) SavePrevious(i *Identity) error {
	if err := i.check(); err != nil {
		return fmt.Errorf("saving the previous identity: %w", err)
	}
	data, err := encodeIdentity(i)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return durable.WriteFile(s.fsys, s.PreviousPath(), data, 0o600)
}

// PreviousPath is the file of SavePrevious.
func (s *HostStore) PreviousPath() string { return s.path + previousSuffix }

// previousSuffix cannot end the name of another identity's file.
const previousSuffix = "-previous"

// Versions gives the workload's identity and the one before it; err is as Load's.
func (s *SealedStore) Versions(pair Pair) (Versions, error) {
	newest, err := s.Load(pair)
	if err != nil {
		return Versions{}, err
	}
	path, err := s.path(pair)
	if err != nil {
		return Versions{}, err
	}
	v := Versions{New: newest}
	// Without the one before, the newest has to do.
	if old, err := s.load(pair, path+previousSuffix); err == nil && old.ID == newest.ID {
		v.Old = old
	}
	return v, nil
}

// PreviousPath is the file of SavePrevious.
func (s *SealedStore) PreviousPath(pair Pair) (string, error) {
	path, err := s.path(pair)
	return path + previousSuffix, err
}

// SavePrevious keeps an identity beside the workload's newest, in a file of its own.
func (s *SealedStore) SavePrevious(pair Pair, i *Identity) error {
	path, err := s.path(pair)
	if err != nil {
		return err
	}
	return s.save(pair, path+previousSuffix, i)
}
