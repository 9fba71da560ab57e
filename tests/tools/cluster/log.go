package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// maxLogLine is containerd's default: a longer line is written in parts, all but the last tagged P.
const maxLogLine = 16 << 10

// criLog writes a container's output in the CRI's log format, "TIME STREAM TAG LINE"; without a path it swallows it.
type criLog struct {
	path string

	mu      sync.Mutex
	file    *os.File
	streams []*logStream
}

type logStream struct {
	log     *criLog
	name    string
	pending []byte
}

func openLog(path string) (*criLog, error) {
	l := &criLog{path: path}
	return l, l.reopen()
}

func (l *criLog) reopen() error {
	if l.path == "" {
		return nil
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.file = file
	return nil
}

func (l *criLog) stream(name string) io.Writer {
	s := &logStream{log: l, name: name}
	l.streams = append(l.streams, s)
	return s
}

func (l *criLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.streams {
		if len(s.pending) > 0 {
			s.line("F", s.pending)
		}
	}
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// Write never fails: a full disk must not end the container with SIGPIPE.
func (s *logStream) Write(p []byte) (int, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.pending = append(s.pending, p...)
	for {
		end := bytes.IndexByte(s.pending, '\n')
		switch {
		case end >= 0 && end <= maxLogLine:
			s.line("F", s.pending[:end])
			s.pending = s.pending[end+1:]
		case len(s.pending) > maxLogLine:
			s.line("P", s.pending[:maxLogLine])
			s.pending = s.pending[maxLogLine:]
		default:
			return len(p), nil
		}
	}
}

// line needs log.mu.
func (s *logStream) line(tag string, text []byte) {
	if s.log.file != nil {
		fmt.Fprintf(s.log.file, "%s %s %s %s\n", time.Now().UTC().Format(time.RFC3339Nano), s.name, tag, text)
	}
}
