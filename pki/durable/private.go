package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrExposed says that every user of the machine can read a key.
var ErrExposed = errors.New("every user of this machine can use the key")

// ReadKey reads a file with a private key, of at most limit bytes. A key that
// every user can read or replace is refused. A warning, to be logged, says that
// a group can read it which is neither root's nor this process's own, or another user
// who is not root: its owner, or one of its access control list. As with ssh, that is
// no reason to refuse it: a directory that was restored, or that root reads, is often
// a service user's.
func ReadKey(path string, limit int64) (data []byte, warning string, err error) {
	data, open, err := readPrivate(path, limit)
	switch {
	case err != nil:
		return nil, "", err
	case open.world:
		return nil, "", fmt.Errorf("reading %q: %w, its mode is %#o: chmod 600 it, and consider who may have read it", path, ErrExposed, open.mode)
	}
	return data, open.warning(path), nil
}

// ReadToken is [ReadKey] for a token. One that every user can read is warned of
// and not refused: a process that runs today must start tomorrow.
func ReadToken(path string, limit int64) (data []byte, warning string, err error) {
	data, open, err := readPrivate(path, limit)
	if err != nil {
		return nil, "", err
	}
	if open.world {
		return data, fmt.Sprintf("every user of this machine can use the token in %q, its mode is %#o: chmod 600 it, and consider who may have read it", path, open.mode), nil
	}
	return data, open.warning(path), nil
}

// exposure is who can read a file besides its owner.
type exposure struct {
	mode  fs.FileMode
	world bool
	// groups are those that can read it and have no business with it, by number.
	groups []uint32
	// users are those besides root and this process, by number; owned says that the
	// first owns the file.
	users []uint32
	owned bool
}

func (e exposure) warning(path string) string {
	switch {
	case e.owned:
		return fmt.Sprintf("user %d owns the secret in %q, and can read and replace it, its mode is %#o: chown it to the user of this process, and consider whether that user may know it",
			e.users[0], path, e.mode)
	case len(e.users) > 0:
		return fmt.Sprintf("user %d can read the secret in %q, by its access control list: setfacl -x u:%d it, and consider whether that user may know it", e.users[0], path, e.users[0])
	case len(e.groups) == 0:
		return ""
	}
	return fmt.Sprintf("group %d can read the secret in %q, its mode is %#o: chmod 600 it, or give it to a group of the service's own", e.groups[0], path, e.mode)
}

// readPrivate checks the permissions of the very file that it reads.
func readPrivate(path string, limit int64) ([]byte, exposure, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, exposure{}, fmt.Errorf("reading %q: %w", path, err)
	}
	open, err := exposureOf(f)
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(f, limit+1))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, exposure{}, fmt.Errorf("reading %q: %w", path, err)
	}
	if int64(len(data)) > limit {
		return nil, exposure{}, fmt.Errorf("reading %q: longer than %d bytes", path, limit)
	}
	return data, open, nil
}

// exposureOf says who can read an open file. A pipe is nobody's but the process's
// that has it.
func exposureOf(f *os.File) (exposure, error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return exposure{}, err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return exposure{}, fmt.Errorf("the owner of %q is unknown", f.Name())
	}
	e := exposure{mode: info.Mode().Perm()}
	e.world = e.mode&0o007 != 0
	if !ownUser(owner.Uid) {
		e.users, e.owned = []uint32{owner.Uid}, true
	}
	var groups []uint32
	if acl, ok := aclOf(f); ok {
		// The group's bits of the mode are the list's mask, and say nothing of groups.
		groups = acl.readers(aclGroupObj, aclGroup, owner.Gid)
		for _, u := range acl.readers(0, aclUser, 0) {
			if !ownUser(u) {
				e.users = append(e.users, u)
			}
		}
	} else if e.mode&0o060 != 0 {
		groups = []uint32{owner.Gid}
	}
	for _, g := range groups {
		if !ownGroup(g, owner.Uid) {
			e.groups = append(e.groups, g)
		}
	}
	return e, nil
}

// ownUser says whether a user is root or this process's.
func ownUser(user uint32) bool { return user == 0 || int(user) == os.Geteuid() }

// ownGroup says whether a group is root's or this process's. The groups besides
// its first count where it needs one: it does not own the file.
func ownGroup(group, owner uint32) bool {
	if group == 0 || int(group) == os.Getegid() {
		return true
	}
	if int(owner) == os.Geteuid() {
		return false
	}
	mine, err := os.Getgroups()
	return err == nil && slices.Contains(mine, int(group))
}

// accessList is a POSIX access control list as the kernel gives it.
type accessList []byte

// The parts of a list that grant something to groups and users (linux/posix_acl.h).
const (
	aclAttribute = "system.posix_acl_access"
	aclHead      = 4
	aclEntry     = 8
	aclUser      = 0x02
	aclGroupObj  = 0x04
	aclGroup     = 0x08
	aclMask      = 0x10
	aclReadWrite = 0x06
)

// aclOf is the file's list; false where it has none beyond its mode.
func aclOf(f *os.File) (accessList, bool) {
	buf := make([]byte, 4096)
	n, err := unix.Fgetxattr(int(f.Fd()), aclAttribute, buf)
	if err != nil || n < aclHead {
		return nil, false
	}
	return buf[aclHead:n], true
}

// readers are the groups, or users, that may read or write, by the entries of two
// kinds; owning is whom the entry without a number is of.
func (l accessList) readers(own, named uint16, owning uint32) []uint32 {
	mask := uint16(aclReadWrite)
	for e := range slices.Chunk(l, aclEntry) {
		if len(e) == aclEntry && binary.LittleEndian.Uint16(e) == aclMask {
			mask = binary.LittleEndian.Uint16(e[2:])
		}
	}
	var out []uint32
	for e := range slices.Chunk(l, aclEntry) {
		if len(e) < aclEntry || binary.LittleEndian.Uint16(e[2:])&mask&aclReadWrite == 0 {
			continue
		}
		switch binary.LittleEndian.Uint16(e) {
		case own:
			out = append(out, owning)
		case named:
			out = append(out, binary.LittleEndian.Uint32(e[4:]))
		}
	}
	return out
}
