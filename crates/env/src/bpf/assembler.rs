//! Instructions for the kernel's virtual machine (`Documentation/bpf/standardization/instruction-set.rst`), as many as
//! tracers need.

/// A register. `R1` to `R5` are arguments of calls and lost by them, `R6` to `R9` stay, `R0` is the result, `R10` the end of
/// the stack of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Functions of the kernel, as `bpf_…` in `bpf.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Function {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    Time = 5,
    CurrentThread = 14,
    ReadUser = 112,
    ReadKernel = 113,
    ReadUserText = 114,
    RingOutput = 130,
}

/// How wide a load or a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 1 byte.
    Byte = 0x10,
    /// 4 bytes.
    Word = 0x00,
    /// 8 bytes.
    Double = 0x18,
}

/// When a jump is taken: the register, compared with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It is equal.
    Equal = 0x10,
    /// It is greater, both without a sign.
    Greater = 0x20,
    /// It is not equal.
    NotEqual = 0x50,
    /// A bit is set in both.
    Set = 0x40,
    /// It is less or equal, with a sign.
    AtMost = 0xd0,
}

/// What is done to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    /// Adds.
    Add = 0x00,
    /// Subtracts.
    Subtract = 0x10,
    /// Keeps common bits.
    And = 0x50,
    /// Shifts to higher bits.
    Left = 0x60,
    /// Shifts to lower bits.
    Right = 0x70,
    /// Replaces.
    Set = 0xb0,
}

/// A place that jumps go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// A program that is being written.
#[derive(Default)]
pub struct Assembler {
    code: Vec<u64>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn put(&mut self, code: u8, to: Register, from: u8, offset: i16, number: i32) {
        let registers = to as u64 | u64::from(from) << 4;
        let number = u64::from(number as u32) << 32;
        self.code.push(u64::from(code) | registers << 8 | u64::from(offset as u16) << 16 | number);
    }

    /// A place that is not yet known.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label is here.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// `to ← to OP number`.
    pub fn number(&mut self, what: Do, to: Register, number: i32) {
        self.put(0x07 | what as u8, to, 0, 0, number);
    }

    /// `to ← to OP from`.
    pub fn register(&mut self, what: Do, to: Register, from: Register) {
        self.put(0x0f | what as u8, to, from as u8, 0, 0);
    }

    /// `to ← *(from + offset)`.
    pub fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.put(0x61 | width as u8, to, from as u8, offset, 0);
    }

    /// `*(to + offset) ← from`.
    pub fn store(&mut self, width: Width, to: Register, offset: i16, from: Register) {
        self.put(0x63 | width as u8, to, from as u8, offset, 0);
    }

    /// `*(to + offset) ← number`.
    pub fn store_number(&mut self, width: Width, to: Register, offset: i16, number: i32) {
        self.put(0x62 | width as u8, to, 0, offset, number);
    }

    /// `*(to + offset) += from`, 8 bytes, at once for all processors.
    pub fn add_atomic(&mut self, to: Register, offset: i16, from: Register) {
        self.put(0xdb, to, from as u8, offset, 0);
    }

    /// `to ←` a map.
    pub fn map(&mut self, to: Register, map: &super::Map) {
        // Two slots; source 1 says that the number is a descriptor.
        self.put(0x18, to, 1, 0, map.descriptor());
        self.code.push(0);
    }

    /// Goes to a label.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(0x05, Register::R0, 0, 0, 0);
    }

    /// Goes to a label, perhaps.
    pub fn jump_if(&mut self, left: Register, when: When, right: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(0x05 | when as u8, left, 0, 0, right);
    }

    /// Calls a function of the kernel.
    pub fn call(&mut self, function: Function) {
        self.put(0x85, Register::R0, 0, 0, function as i32);
    }

    /// Ends the program; `R0` is what it says.
    pub fn exit(&mut self) {
        self.put(0x95, Register::R0, 0, 0, 0);
    }

    /// The program.
    ///
    /// # Panics
    /// If a label has no place, or a jump is too far: both are mistakes of who wrote the program.
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("the label has a place");
            let distance = target as i64 - at as i64 - 1;
            let distance = i16::try_from(distance).expect("the jump is near") as u16;
            self.code[at] |= u64::from(distance) << 16;
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Register::*;

    #[test]
    fn instructions_are_those_of_the_standard() {
        let mut program = Assembler::default();
        let end = program.label();
        program.number(Do::Set, R0, 7);
        program.register(Do::Set, R6, R1);
        program.load(Width::Double, R7, R6, 8);
        program.store(Width::Word, R10, -4, R7);
        program.jump_if(R0, When::Equal, -1, end);
        program.call(Function::Time);
        program.place(end);
        program.exit();
        let bytes: Vec<u8> = program.finish().iter().flat_map(|code| code.to_le_bytes()).collect();
        // As clang and objdump have them.
        let expected: [[u8; 8]; 7] = [
            [0xb7, 0x00, 0, 0, 7, 0, 0, 0],
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],
            [0x79, 0x67, 8, 0, 0, 0, 0, 0],
            [0x63, 0x7a, 0xfc, 0xff, 0, 0, 0, 0],
            [0x15, 0x00, 1, 0, 0xff, 0xff, 0xff, 0xff],
            [0x85, 0x00, 0, 0, 5, 0, 0, 0],
            [0x95, 0x00, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }
}
