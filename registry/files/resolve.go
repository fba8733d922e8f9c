package files

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// hop is a name in a directory whose own path has no symbolic link.
type hop struct{ dir, name string }

// maxLinks is the kernel's own bound of symbolic links in one path.
const maxLinks = 40

// resolve follows every symbolic link of an absolute path. The hops are the links on the way
// and the last name: if one of them changes, the path may lead elsewhere. If a name is
// missing, it is the last hop.
func resolve(path string) (realPath string, hops []hop, err error) {
	cur, rest := "/", parts(path)
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			cur = filepath.Dir(cur)
			continue
		}
		next := filepath.Join(cur, name)
		fi, err := os.Lstat(next)
		if err != nil {
			return "", append(hops, hop{cur, name}), err
		}
		if fi.Mode()&os.ModeSymlink == 0 {
			cur = next
			continue
		}
		hops = append(hops, hop{cur, name})
		if links++; links > maxLinks {
			return "", hops, &os.PathError{Op: "resolve", Path: path, Err: syscall.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", hops, err
		}
		if filepath.IsAbs(target) {
			cur = "/"
		}
		rest = append(parts(target), rest...)
	}
	return cur, append(hops, hop{filepath.Dir(cur), filepath.Base(cur)}), nil
}

func parts(path string) []string {
	var list []string
	for p := range strings.SplitSeq(path, "/") {
		if p != "" && p != "." {
			list = append(list, p)
		}
	}
	return list
}
