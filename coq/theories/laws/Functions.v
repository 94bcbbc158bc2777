(** * Functions of sums of products

    A function of a sum with a truth value in it is one of two values, chosen by the truth value.  What then
    is known of functions is their sign, and the order of values of which the greatest is taken. *)

From Coq Require Import List Bool ZArith QArith Qabs Ring Lia.
Import ListNotations.
From PyPM.laws Require Import Structures Expressions Polynomials Powers.

#[local] Arguments Qred : simpl never.

Definition number (c : Q) : poly := if Qeq_bool c 0 then [] else [(c, [])].
Definition opposite (p : poly) : poly := pscale (-1) [] p.

(** ** Truth values *)
Fixpoint exponent (e : expr) (m : mono) : Q :=
  match m with [] => 0 | (f, q) :: m => if same e f then q else exponent e m end.
Fixpoint without (e : expr) (m : mono) : mono :=
  match m with [] => [] | (f, q) :: m => if same e f then m else (f, q) :: without e m end.
Fixpoint when_true (e : expr) (p : poly) : poly :=
  match p with [] => [] | (c, m) :: p => plus c (without e m) (when_true e p) end.
Fixpoint when_false (e : expr) (p : poly) : poly :=
  match p with
  | [] => []
  | (c, m) :: p => if Qeq_bool (exponent e m) 0 then (c, m) :: when_false e p else when_false e p
  end.
Definition is_truth (f : factor) : bool := match fst f with Fn f _ => truth f | _ => false end.
Definition first_truth (p : poly) : option factor := find is_truth (flat_map snd p).
Fixpoint by_cases (fuel : nat) (f : poly -> poly) (p : poly) : poly :=
  match fuel, first_truth p with
  | S fuel, Some (e, _) =>
      let no := by_cases fuel f (when_false e p) in
      padd no (pmul (atom e) (padd (by_cases fuel f (when_true e p)) (opposite no)))
  | _, _ => f p
  end.
Definition most_cases : nat := 6.

(** ** Signs *)
Fixpoint integral (e : expr) : bool :=
  match e with
  | Num k => whole k
  | Size _ | Var _ => true
  | Add a b | Mul a b => integral a && integral b
  | Pow a q => integral a && whole q && Qle_bool 0 q
  | _ => false
  end.
Definition constant (p : poly) : Q := match p with (c, []) :: _ => c | _ => 0 end.
Definition leading (p : poly) : Q := match p with (c, _) :: _ => c | [] => 0 end.

Fixpoint reified (ps : list poly) : expr :=
  match ps with [] => Nil | p :: ps => Cons (reify p) (reified ps) end.
Definition held (f : Z) (ps : list poly) : poly := atom (Fn f (reified ps)).

(** Of a whole number and its opposite, one is above zero: the one without a positive number is written. *)
Definition is_above (p : poly) : poly :=
  if positive (reify p) then number 1
  else if nonneg (reify (opposite p)) then []
  else if integral (reify p) then
    if Qle_bool (constant p) 0 then held 0 [p]
    else padd (number 1) (opposite (held 0 [padd (number 1) (opposite p)]))
  else if Qeq_bool (leading p) 0 then held 0 [p]
  else held 0 [pscale (Qabs (/ leading p)) [] p].
Definition is_nothing (p : poly) : poly :=
  match p with
  | [] => number 1
  | _ => if positive (reify p) || positive (reify (opposite p)) then [] else held 1 [p]
  end.
Definition signed (f : Z) (p : poly) : poly :=
  if Qle_bool 0 (leading p) then held f [p]
  else if odd f then opposite (held f [opposite p]) else held f [opposite p].

(** ** The greatest of some values

    A value is the least of some clauses, each the greatest of some expressions: in order, each once, of
    numbers one, and no clause within another. *)
Definition clause : Type := list expr.
Fixpoint negated (e : expr) : expr :=
  match e with
  | Mul (Num c) a => if Qeq_bool c (-1) then a else Mul (Num (Qred (- c))) a
  | Add a b => Add (negated a) (negated b)
  | _ => Mul (Num (-1)) e
  end.
Definition literal (s : bool) (e : expr) : expr :=
  match e with
  | Mul (Num c) (Num d) => Num (Qred (if s then c * d else - (c * d)))
  | Num c => Num (Qred (if s then c else - c))
  | _ => if s then e else negated e
  end.
Fixpoint placed_in (e : expr) (l : clause) : clause :=
  match l with
  | [] => [e]
  | d :: l' =>
      match e, d with
      | Num a, Num b => (if Qle_bool a b then d else e) :: l'
      | _, _ => match cmp e d with Eq => l | Lt => e :: l | Gt => d :: placed_in e l' end
      end
  end.
Definition joined (c d : clause) : clause := fold_right placed_in d c.
Definition within (c d : clause) : bool := forallb (fun e => existsb (same e) d) c.
Definition added (c : clause) (cs : list clause) : list clause :=
  if existsb (fun d => within d c) cs then cs else c :: filter (fun d => negb (within c d)) cs.
Definition is_greater (e : expr) : bool :=
  match e with Fn f (Cons _ (Cons _ Nil)) => Z.eqb f greater | _ => false end.
(** The clauses of a value, or of its opposite *)
Fixpoint clauses (s : bool) (e : expr) : list clause :=
  match e with
  | Fn f (Cons a (Cons b Nil)) =>
      if Z.eqb f greater then
        if s then flat_map (fun c => map (joined c) (clauses s b)) (clauses s a)
        else clauses s a ++ clauses s b
      else [[literal s e]]
  | Mul (Num c) b => if Qeq_bool c (-1) && is_greater b then clauses (negb s) b else [[literal s e]]
  | _ => [[literal s e]]
  end.
Fixpoint greatest_of (c : clause) : expr :=
  match c with
  | [] => Num 0
  | [e] => e
  | e :: c => Fn greater (Cons e (Cons (greatest_of c) Nil))
  end.
Definition most_clauses : nat := 64.
Definition of_clauses (cs : list clause) : poly :=
  match cs with
  | [[Num k]] => number k
  | [c] => atom (greatest_of c)
  | _ => opposite (atom (greatest_of (fold_right placed_in [] (map (fun c => literal false (greatest_of c)) cs))))
  end.
(** Of a value and its opposite, one form is the opposite of the other. *)
Definition pgreater (p q : poly) : poly :=
  let one := clauses true (reify p) in
  let two := clauses true (reify q) in
  if Nat.leb most_clauses (length one * length two) then held greater [p; q] else
  match fold_right added [] (flat_map (fun c => map (joined c) two) one) with
  | [[e]] => if same e (reify p) then p else if same e (reify q) then q else of_clauses [[e]]
  | cs =>
      let a := of_clauses cs in
      let b := of_clauses (fold_right added [] (clauses false (reify p) ++ clauses false (reify q))) in
      match cmp (reify a) (reify b) with Gt => opposite b | _ => a end
  end.

(** ** All functions, of arguments that are polynomials *)
Definition direct (f : Z) (ps : list poly) : poly :=
  match ps with
  | [p] =>
      if Z.eqb f 0 then is_above p
      else if Z.eqb f 1 then is_nothing p
      else if odd f || symmetric f then signed f p
      else held f ps
  | [p; q] => if Z.eqb f greater then pgreater p q else held f ps
  | _ => held f ps
  end.
Fixpoint each_case (f : list poly -> poly) (before ps : list poly) : poly :=
  match ps with
  | [] => f before
  | p :: ps => by_cases most_cases (fun p => each_case f (before ++ [p]) ps) p
  end.
Definition function (f : Z) (ps : list poly) : poly :=
  if Z.eqb f log then match ps with [p] => plog p | _ => held f ps end
  else each_case (direct f) [] ps.

(** ** They denote what they should *)
Section Denotation.
Context {A : structure} (In : inputs A).
Add Ring A_ring : (ring_laws A).
Notation den := (den In).
Notation dens := (dens In).
Notation def := (def In).
Notation den_m := (den_m In).
Notation ok_m := (ok_m In).
Notation is_m := (is_m In).
Notation is_p := (is_p In).
Notation is_e := (is_e In).

Lemma number_is I c : is_p I (number c) (num c).
Proof.
  unfold number. destruct (Qeq_bool c 0) eqn:E.
  - rewrite (num_zero_bool _ E). now split.
  - split; cbn; auto. ring.
Qed.
Lemma one_is I : is_p I (number 1) one.
Proof. rewrite <- num_1. apply number_is. Qed.
Lemma num_minus : num (-1) = opp (one : A).
Proof. rewrite <- num_1. apply (num_opp 1). Qed.
Lemma opposite_is I p x : is_p I p x -> is_p I (opposite p) (opp x).
Proof.
  intros P. replace (opp x) with (mul (mul (num (-1)) one) x) by (rewrite num_minus; ring).
  apply pscale_is; [now split | exact P].
Qed.

(** *** Cases *)
Lemma exponent_is I e m : ok_m I m -> ok (den I e) (exponent e m) /\ ok_m I (without e m) /\
  den_m I m = mul (pw (den I e) (exponent e m)) (den_m I (without e m)).
Proof.
  induction m as [| [f q] m IH]; cbn [exponent without]; intros O.
  - split; [apply ok_0 | split; [exact Logic.I |]]. rewrite pw_0. cbn. ring.
  - destruct O as [[D K] O]. destruct (same e f) eqn:E.
    + apply same_eq in E as <-. auto.
    + destruct (IH O) as (K' & O' & S). split; auto. split; [cbn; auto |]. cbn. rewrite S. ring.
Qed.
Lemma when_true_is I e p x : is_p I p x -> den I e = one -> is_p I (when_true e p) x.
Proof.
  intros [O <-] E. induction p as [| [c m] p IH]; [now split |]. destruct O as [Om O].
  destruct (exponent_is I e m Om) as (_ & Ow & S). rewrite E, pw_one in S.
  cbn [when_true]. change (is_p I (plus c (without e m) (when_true e p)) (add (mul (num c) (den_m I m)) (den_p In I p))).
  apply plus_is; [split; [exact Ow |] | now apply IH]. rewrite S. ring.
Qed.
Lemma when_false_is I e p x : is_p I p x -> den I e = zero -> is_p I (when_false e p) x.
Proof.
  intros [O <-] E. induction p as [| [c m] p IH]; [now split |]. destruct O as [Om O].
  destruct (IH O) as [O' S']. cbn [when_false]. destruct (Qeq_bool (exponent e m) 0) eqn:Z.
  - split; [now split |]. cbn. now rewrite S'.
  - destruct (exponent_is I e m Om) as (K & _ & S). rewrite E in K, S. apply Qeq_bool_neq in Z.
    assert (P : 0 < exponent e m).
    { destruct (Qlt_le_dec 0 (exponent e m)) as [| L]; auto. exfalso. apply Qle_lteq in L as [L | L]; auto.
      now apply K in L. }
    split; [exact O' |]. rewrite S', (pw_zero A _ P) in *. cbn. rewrite S. ring.
Qed.
Lemma first_truth_is I p x e q : is_p I p x -> first_truth p = Some (e, q) ->
  def I e /\ (den I e = zero \/ den I e = one).
Proof.
  intros P F. apply find_some in F as [M T]. unfold is_truth in T. cbn in T.
  assert (D : def I e).
  { pose proof (ok_candidates In I p x P) as O. clear P T. induction (flat_map snd p) as [| [f r] m IH]; [easy |].
    destruct O as [[D _] O]. destruct M as [[= -> ->] | M]; auto. }
  split; [exact D |]. destruct e; try discriminate. now apply fn_truth.
Qed.
Lemma by_cases_is I (f : poly -> poly) (g : A -> A) : (forall p x, is_p I p x -> is_p I (f p) (g x)) ->
  forall fuel p x, is_p I p x -> is_p I (by_cases fuel f p) (g x).
Proof.
  intros H. induction fuel as [| fuel IH]; intros p x P; cbn [by_cases]; [now apply H |].
  destruct (first_truth p) as [[e q] |] eqn:F; [| now apply H].
  destruct (first_truth_is I p x e q P F) as [D T]. set (yes := when_true e p). set (no := when_false e p).
  assert (Any : forall p, ok_p In I p -> is_p I p (den_p In I p)) by now split.
  assert (Oy : ok_p In I yes).
  { unfold yes. destruct P as [O _]. clear - O. induction p as [| [c m] p IH]; [easy |]. destruct O as [Om O].
    cbn [when_true]. destruct (exponent_is I e m Om) as (_ & Ow & _).
    exact (proj1 (plus_is In I c _ _ _ _ (conj Ow eq_refl) (conj (IH O) eq_refl))). }
  assert (On : ok_p In I no).
  { unfold no. destruct P as [O _]. clear - O. induction p as [| [c m] p IH]; [easy |]. destruct O as [Om O].
    cbn [when_false]. destruct (Qeq_bool _ 0); [split |]; auto. }
  assert (Sum : forall y n, is_p I (by_cases fuel f yes) y -> is_p I (by_cases fuel f no) n ->
    is_p I (padd (by_cases fuel f no) (pmul (atom e) (padd (by_cases fuel f yes) (opposite (by_cases fuel f no)))))
      (add n (mul (den I e) (add y (opp n))))).
  { intros y n Y N. apply padd_is; [exact N |]. apply pmul_is; [now apply atom_is |].
    apply padd_is; [exact Y | now apply opposite_is]. }
  destruct T as [T | T].
  - pose proof (Sum _ _ (IH _ _ (Any _ Oy)) (IH _ _ (when_false_is I e p x P T))) as S. rewrite T in S.
    replace (g x) with (add (g x) (mul zero (add (g (den_p In I yes)) (opp (g x))))) by ring. exact S.
  - pose proof (Sum _ _ (IH _ _ (when_true_is I e p x P T)) (IH _ _ (Any _ On))) as S. rewrite T in S.
    replace (g x) with (add (g (den_p In I no)) (mul one (add (g x) (opp (g (den_p In I no)))))) by ring. exact S.
Qed.

(** *** Signs *)
Lemma integral_is I e : integral e = true -> def I e -> exists z, den I e = num (inject_Z z).
Proof.
  induction e; cbn; try discriminate; intros H D.
  - exists (whole_of q). apply num_eq. now apply whole_of_spec.
  - now eexists.
  - destruct D as [i ->]. now exists (Z.of_nat i).
  - apply andb_prop in H as [H H']. destruct D as [D D'].
    destruct (IHe1 H D) as [y ->], (IHe2 H' D') as [z ->]. exists (y + z)%Z. now rewrite inject_Z_plus, num_plus.
  - apply andb_prop in H as [H H']. destruct D as [D D'].
    destruct (IHe1 H D) as [y ->], (IHe2 H' D') as [z ->]. exists (y * z)%Z. now rewrite inject_Z_mult, num_mult.
  - apply andb_prop in H as [H L]. apply andb_prop in H as [H W]. apply Qle_bool_iff in L. destruct D as [D _].
    destruct (IHe H D) as [z ->]. rewrite (pw_eq A _ _ _ (whole_of_spec q W)).
    assert (N : (0 <= whole_of q)%Z) by (rewrite Zle_Qle; now rewrite <- (whole_of_spec q W)).
    rewrite <- (Z2Nat.id _ N), pw_num_nat. exists (z ^ Z.of_nat (Z.to_nat (whole_of q)))%Z. apply num_eq.
    symmetry. apply Qpower.Zpower_Qpower. lia.
Qed.
Lemma held_is I f ps xs : Forall2 (is_p I) ps xs -> defined f xs -> is_p I (held f ps) (fn f xs).
Proof.
  intros H K. assert (R : def I (reified ps) /\ dens I (reified ps) = xs).
  { clear K. induction H as [| p x ps xs P _ [D E]]; [now split |]. destruct (reify_is In I p x P) as [D' E'].
    split; [now split | cbn; now rewrite <- E', <- E]. }
  destruct R as [D E]. rewrite <- E in K |- *. apply (atom_is In I (Fn f (reified ps))). now split.
Qed.
Lemma held_one I f p x : f <> log -> is_p I p x -> is_p I (held f [p]) (fn f [x]).
Proof. intros N P. apply held_is; [auto | now intros E]. Qed.
Lemma above_whole z : fn 0 [num (inject_Z z) : A] = if Z.ltb 0 z then one else zero.
Proof.
  destruct (Z.ltb_spec 0 z) as [L | L].
  - assert (P : above (num (inject_Z z) : A)) by (apply above_num; change 0 with (inject_Z 0); now rewrite <- Zlt_Qlt).
    apply fn_positive; apply P.
  - replace (num (inject_Z z)) with (opp (num (inject_Z (- z))) : A).
    + apply fn_not_positive, num_nn. change 0 with (inject_Z 0). rewrite <- Zle_Qle. lia.
    + rewrite <- num_opp. apply num_eq. now rewrite <- inject_Z_opp, Z.opp_involutive.
Qed.
Lemma is_above_is I p x : is_p I p x -> is_p I (is_above p) (fn 0 [x]).
Proof.
  intros P. destruct (reify_is In I p x P) as [D E]. pose proof (held_one I 0 p x ltac:(discriminate) P) as H.
  destruct (reify_is In I _ _ (opposite_is I p x P)) as [D' E']. unfold is_above.
  destruct (positive (reify p)) eqn:C.
  { pose proof (positive_is In _ I C D) as S. rewrite E in S. rewrite fn_positive by apply S. apply one_is. }
  destruct (nonneg (reify (opposite p))) eqn:N.
  { pose proof (nonneg_is In _ I N D') as S. rewrite E' in S. replace x with (opp (opp x)) by ring.
    rewrite fn_not_positive by exact S. now split. }
  destruct (integral (reify p)) eqn:W.
  - destruct (Qle_bool (constant p) 0); [exact H |].
    destruct (integral_is I _ W D) as [z Z]. rewrite E in Z. clear D E D' E' H. subst x.
    set (y := num (inject_Z z)) in *. replace (fn 0 [y]) with (add one (opp (fn 0 [add one (opp y)]))).
    + apply padd_is; [apply one_is |]. apply opposite_is, held_one; [discriminate |].
      apply padd_is; [apply one_is | now apply opposite_is].
    + replace (add one (opp y)) with (num (inject_Z (1 - z)) : A).
      * unfold y. rewrite !above_whole. destruct (Z.ltb_spec 0 z), (Z.ltb_spec 0 (1 - z)); try lia; ring.
      * unfold y. rewrite <- num_opp, <- num_1, <- num_plus. apply num_eq.
        unfold Z.sub. now rewrite inject_Z_plus, inject_Z_opp.
  - destruct (Qeq_bool (leading p) 0) eqn:L; [exact H |]. apply Qeq_bool_neq in L.
    assert (K : 0 < Qabs (/ leading p)).
    { destruct (Qlt_le_dec 0 (Qabs (/ leading p))) as [| K]; auto. exfalso. apply L.
      assert (Z : Qabs (/ leading p) == 0) by (apply Qle_antisym; [exact K | apply Qabs_nonneg]).
      rewrite <- (Qinv_involutive (leading p)). destruct (Qlt_le_dec (/ leading p) 0) as [G | G].
      - rewrite Qabs_neg in Z by now apply Qlt_le_weak. rewrite <- (Qopp_involutive (/ leading p)), Z. reflexivity.
      - rewrite Qabs_pos in Z by assumption. rewrite Z. reflexivity. }
    rewrite <- (fn_scaled A _ x K). apply held_one; [discriminate |].
    replace (mul (num (Qabs (/ leading p))) x) with (mul (mul (num (Qabs (/ leading p))) one) x) by ring.
    apply pscale_is; [now split | exact P].
Qed.
Lemma opp_apart (x : A) : opp x <> zero -> x <> zero.
Proof. intros N ->. apply N. ring. Qed.
Lemma is_nothing_is I p x : is_p I p x -> is_p I (is_nothing p) (fn 1 [x]).
Proof.
  intros P. destruct (reify_is In I p x P) as [D E]. destruct (reify_is In I _ _ (opposite_is I p x P)) as [D' E'].
  unfold is_nothing. destruct p as [| t p].
  - destruct P as [_ <-]. cbn. rewrite fn_of_zero. apply one_is.
  - destruct (_ || _) eqn:C; [| apply held_one; [discriminate | exact P]].
    rewrite fn_zero; [now split |]. apply orb_prop in C as [C | C].
    + pose proof (positive_is In _ I C D) as S. rewrite E in S. apply S.
    + pose proof (positive_is In _ I C D') as S. rewrite E' in S. apply opp_apart, S.
Qed.
Lemma signed_is I f p x : odd f || symmetric f = true -> is_p I p x -> is_p I (signed f p) (fn f [x]).
Proof.
  intros S P. assert (N : f <> log) by (intros ->; discriminate). unfold signed.
  destruct (Qle_bool 0 (leading p)); [now apply held_one |].
  replace x with (opp (opp x)) by ring. destruct (odd f) eqn:O.
  - rewrite fn_odd by assumption. apply opposite_is, held_one; [exact N | now apply opposite_is].
  - rewrite fn_symmetric by assumption. apply held_one; [exact N | now apply opposite_is].
Qed.

(** *** The greatest of some values *)
Definition larger (x y : A) : A := fn greater [x; y].
Lemma larger_same x : larger x x = x.
Proof. apply greater_above. replace (sub x x) with (num 0 : A) by (rewrite num_0; ring). now apply num_nn. Qed.
Lemma larger_joined x y z : larger (larger x y) z = larger x (larger y z).
Proof. apply greater_joined. Qed.
Lemma larger_swap x y : larger x y = larger y x.
Proof. apply greater_swap. Qed.
Lemma larger_twice x y : larger x (larger x y) = larger x y.
Proof. now rewrite <- larger_joined, larger_same. Qed.
Lemma larger_num a b : a <= b -> larger (num a) (num b) = (num b : A).
Proof.
  intros L. apply greater_above. replace (sub (num b) (num a)) with (num (b - a) : A).
  - apply num_nn. now apply (proj1 (Qle_minus_iff a b)).
  - unfold Qminus. rewrite num_plus, num_opp. ring.
Qed.

Definition join (x y : option A) : option A :=
  match x, y with
  | Some x, Some y => Some (larger x y)
  | Some x, None | None, Some x => Some x
  | None, None => None
  end.
Lemma join_joined x y z : join (join x y) z = join x (join y z).
Proof. destruct x, y, z; cbn; auto. now rewrite larger_joined. Qed.
Lemma join_swap x y : join x y = join y x.
Proof. destruct x, y; cbn; auto. now rewrite larger_swap. Qed.
Lemma join_twice x y : join (Some x) (join (Some x) y) = join (Some x) y.
Proof. rewrite <- join_joined. cbn. now rewrite larger_same. Qed.
Fixpoint top I (c : clause) : option A :=
  match c with [] => None | e :: c => join (Some (den I e)) (top I c) end.
Definition smaller (x y : A) : A := opp (larger (opp x) (opp y)).
Lemma opp_opp (x : A) : opp (opp x) = x.
Proof. ring. Qed.
Lemma smaller_swap x y : smaller x y = smaller y x.
Proof. unfold smaller. now rewrite larger_swap. Qed.
Lemma smaller_joined x y z : smaller (smaller x y) z = smaller x (smaller y z).
Proof. unfold smaller. now rewrite !opp_opp, larger_joined. Qed.
Lemma smaller_same x : smaller x x = x.
Proof. unfold smaller. rewrite larger_same. apply opp_opp. Qed.
Lemma smaller_larger x y : smaller x (larger x y) = x.
Proof.
  unfold smaller. rewrite larger_swap. unfold larger at 1. rewrite greater_above; [apply opp_opp |].
  replace (sub (opp x) (opp (larger x y))) with (sub (larger x y) x) by ring. apply greater_least.
Qed.
Lemma larger_smaller x y z : larger (smaller x y) z = smaller (larger x z) (larger y z).
Proof.
  unfold smaller. unfold larger at 1 2. rewrite greater_lesser. fold (larger (opp (opp x)) z).
  fold (larger (opp (opp y)) z). now rewrite !opp_opp.
Qed.

Definition is_c I (c : clause) (x : A) : Prop := Forall (def I) c /\ top I c = Some x.
Inductive is_cs I : list clause -> A -> Prop :=
| One_clause c x : is_c I c x -> is_cs I [c] x
| More_clauses c cs x y : is_c I c x -> is_cs I cs y -> is_cs I (c :: cs) (smaller x y).

Lemma placed_in_is I e l : def I e -> Forall (def I) l ->
  Forall (def I) (placed_in e l) /\ top I (placed_in e l) = join (Some (den I e)) (top I l).
Proof.
  intros D. induction 1 as [| d l Dd F IH]; [cbn; auto |].
  assert (Ordered : let r := match cmp e d with Eq => d :: l | Lt => e :: d :: l | Gt => d :: placed_in e l end in
    Forall (def I) r /\ top I r = join (Some (den I e)) (top I (d :: l))).
  { cbv zeta. destruct (cmp e d) eqn:C; [| split; auto |].
    - apply cmp_eq in C as <-. split; auto. cbn [top]. now rewrite join_twice.
    - destruct IH as [F' S]. split; auto. cbn [top]. rewrite S, <- !join_joined.
      now rewrite (join_swap (Some (den I d))). }
  destruct e as [a | | | | | | | | | | | | |]; try exact Ordered.
  destruct d as [b | | | | | | | | | | | | |]; try exact Ordered. clear Ordered. cbn [placed_in top].
  rewrite <- join_joined. cbn [join Expressions.den]. destruct (Qle_bool a b) eqn:L.
  - apply Qle_bool_iff in L. rewrite larger_num by exact L. split; auto.
  - assert (G : b <= a).
    { destruct (Qlt_le_dec b a) as [G | G]; [now apply Qlt_le_weak |]. apply Qle_bool_iff in G. congruence. }
    rewrite larger_swap, larger_num by exact G. split; auto.
Qed.
Lemma joined_is I c d x y : is_c I c x -> is_c I d y -> is_c I (joined c d) (larger x y).
Proof.
  intros [F S] [G R]. assert (H : Forall (def I) (joined c d) /\ top I (joined c d) = join (top I c) (top I d)).
  { clear S. induction F as [| e c D F [F' S']]; [cbn; now destruct (top I d) |].
    cbn [joined fold_right]. destruct (placed_in_is I e (joined c d) D F') as [F'' S'']. split; [exact F'' |].
    cbn [top]. rewrite join_joined, <- S'. exact S''. }
  destruct H as [F' S']. split; [exact F' |]. now rewrite S', S, R.
Qed.
Lemma app_cs I cs ds x y : is_cs I cs x -> is_cs I ds y -> is_cs I (cs ++ ds) (smaller x y).
Proof.
  intros H K. induction H as [c x C | c cs x z C _ IH]; cbn; [now constructor |].
  rewrite smaller_joined. now constructor.
Qed.
Lemma map_cs I c ds x y : is_c I c x -> is_cs I ds y -> is_cs I (map (joined c) ds) (larger x y).
Proof.
  intros C H. induction H as [d y D | d ds y z D _ IH]; cbn; [constructor; now apply joined_is |].
  rewrite larger_swap, larger_smaller, (larger_swap y), (larger_swap z). constructor; [now apply joined_is | exact IH].
Qed.
Lemma product_cs I cs ds x y : is_cs I cs x -> is_cs I ds y ->
  is_cs I (flat_map (fun c => map (joined c) ds) cs) (larger x y).
Proof.
  intros H K. induction H as [c x C | c cs x z C _ IH]; cbn; [rewrite app_nil_r; now apply map_cs |].
  rewrite larger_smaller. apply app_cs; [now apply map_cs | exact IH].
Qed.

Lemma negated_is I e : def I e -> def I (negated e) /\ den I (negated e) = opp (den I e).
Proof.
  assert (Plain : forall e, def I e -> def I (Mul (Num (-1)) e) /\ den I (Mul (Num (-1)) e) = opp (den I e)).
  { intros d D. split; [now split |]. cbn. rewrite num_minus. ring. }
  induction e; intros D; try (now apply Plain).
  - destruct D as [D D']. destruct (IHe1 D) as [N E], (IHe2 D') as [N' E']. cbn. rewrite E, E'. split; [now split | ring].
  - destruct e1; try (now apply Plain). destruct D as [_ D]. cbn [negated]. destruct (Qeq_bool q (-1)) eqn:Q.
    + apply Qeq_bool_eq in Q. split; [exact D |]. cbn. rewrite (num_eq A _ _ Q), num_minus. ring.
    + split; [now split |]. cbn. rewrite num_red, num_opp. ring.
Qed.
Definition sign (s : bool) (x : A) : A := if s then x else opp x.
Lemma literal_is I s e : def I e -> def I (literal s e) /\ den I (literal s e) = sign s (den I e).
Proof.
  assert (Plain : def I e -> def I (if s then e else negated e) /\ den I (if s then e else negated e) = sign s (den I e)).
  { destruct s; [now split | apply negated_is]. }
  intros D. specialize (Plain D). destruct e; try exact Plain.
  - split; [exact Logic.I |]. cbn. rewrite num_red. destruct s; [reflexivity | apply num_opp].
  - destruct e1; try exact Plain. destruct e2; try exact Plain. split; [exact Logic.I |]. cbn.
    rewrite num_red, <- num_mult. destruct s; [reflexivity | apply num_opp].
Qed.
Lemma literal_cs I s e : def I e -> is_cs I [[literal s e]] (sign s (den I e)).
Proof. intros D. destruct (literal_is I s e D) as [L E]. constructor. split; [auto | cbn; now rewrite E]. Qed.
Lemma clauses_is I e : def I e -> forall s, is_cs I (clauses s e) (sign s (den I e)).
Proof.
  assert (H : forall e : expr, (def I e -> forall s, is_cs I (clauses s e) (sign s (den I e))) /\
    match e return Prop with
    | Cons b Nil => def I b -> forall s, is_cs I (clauses s b) (sign s (den I b))
    | Cons a (Cons b Nil) => def I a /\ def I b -> forall s : bool, is_cs I
        (if s then flat_map (fun c => map (joined c) (clauses s b)) (clauses s a) else clauses s a ++ clauses s b)
        (sign s (larger (den I a) (den I b)))
    | _ => True
    end).
  { clear e. induction e; (split; [try (intros D r; exact (literal_cs I r _ D)) | try exact Logic.I]).
    - destruct e2; try exact Logic.I; [apply IHe1 |]. destruct e2_2; try exact Logic.I. intros [D D'] s.
      pose proof (proj1 IHe1 D s) as H. pose proof (proj2 IHe2 D' s) as K. destruct s.
      + now apply product_cs.
      + cbn [sign] in *. replace (opp (larger (den I e1) (den I e2_1)))
          with (smaller (opp (den I e1)) (opp (den I e2_1))) by (unfold smaller; now rewrite !opp_opp).
        now apply app_cs.
    - intros D s. destruct e1; try (exact (literal_cs I s _ D)). cbn [clauses].
      destruct (Qeq_bool q (-1) && is_greater e2) eqn:C; [| exact (literal_cs I s _ D)]. apply andb_prop in C as [C _].
      apply Qeq_bool_eq in C. destruct D as [_ D]. pose proof (proj1 IHe2 D (negb s)) as H.
      replace (sign s (den I (Mul (Num q) e2))) with (sign (negb s) (den I e2)); [exact H |].
      cbn. rewrite (num_eq A _ _ C), num_minus. destruct s; cbn; ring.
    - intros D s. cbn [clauses]. destruct e; try (exact (literal_cs I s _ D)). destruct e2; try (exact (literal_cs I s _ D)).
      destruct e2_2; try (exact (literal_cs I s _ D)). destruct (Z.eqb_spec f greater) as [-> |]; [| exact (literal_cs I s _ D)].
      apply IHe. destruct D as [(D & D' & _) _]. now split. }
  apply H.
Qed.

Lemma within_is I c d x y : is_c I c x -> is_c I d y -> within c d = true -> larger x y = y.
Proof.
  intros [F S] [G R] W. assert (Each : forall e, existsb (same e) d = true -> join (Some (den I e)) (Some y) = Some y).
  { intros e E. rewrite <- R. clear - E. induction d as [| d' d IH]; [discriminate |]. cbn [existsb top] in *.
    apply orb_prop in E as [E | E].
    - apply same_eq in E as <-. now rewrite join_twice.
    - rewrite <- join_joined, (join_swap (Some (den I e))), join_joined. now rewrite IH. }
  assert (H : join (top I c) (Some y) = Some y).
  { clear F S. induction c as [| e c IH]; [reflexivity |]. cbn [within forallb top] in *. apply andb_prop in W as [E W].
    rewrite join_joined, IH by exact W. now apply Each. }
  rewrite S in H. cbn in H. now injection H.
Qed.
Lemma added_is I c cs x y : is_c I c x -> is_cs I cs y -> is_cs I (added c cs) (smaller x y).
Proof.
  intros C H. unfold added. destruct (existsb (fun d => within d c) cs) eqn:E.
  - replace (smaller x y) with y; [exact H |]. symmetry. induction H as [d y D | d cs y z D K IH]; cbn in E.
    + rewrite orb_false_r in E. rewrite <- (within_is I d c y x D C E), smaller_swap. apply smaller_larger.
    + apply orb_prop in E as [E | E].
      * rewrite <- smaller_joined. f_equal. rewrite <- (within_is I d c y x D C E), smaller_swap. apply smaller_larger.
      * rewrite <- smaller_joined, (smaller_swap x), smaller_joined. now rewrite IH.
  - clear E. set (keep := fun d => negb (within c d)).
    assert (K : (filter keep cs = [] /\ smaller x y = x) \/ exists z, is_cs I (filter keep cs) z /\ smaller x z = smaller x y).
    { induction H as [d y D | d cs y z D _ IH]; cbn [filter]; change (keep d) with (negb (within c d)); destruct (within c d) eqn:W; cbn [negb].
      - left. split; auto. rewrite <- (within_is I c d x y C D W). apply smaller_larger.
      - right. exists y. split; auto. now constructor.
      - assert (S : smaller x y = x) by (rewrite <- (within_is I c d x y C D W); apply smaller_larger).
        rewrite <- smaller_joined, S. exact IH.
      - right. destruct IH as [[N S] | (w & K & S)].
        + exists y. rewrite N. split; [now constructor |].
          transitivity (smaller (smaller x z) y); [now rewrite S | now rewrite smaller_joined, (smaller_swap z)].
        + exists (smaller y w). split; [now constructor |].
          transitivity (smaller (smaller x w) y); [now rewrite smaller_joined, (smaller_swap w) |].
          now rewrite S, smaller_joined, (smaller_swap z). }
    destruct K as [[-> ->] | (z & K & <-)]; now constructor.
Qed.
Lemma all_added_is I cs x : is_cs I cs x -> is_cs I (fold_right added [] cs) x.
Proof.
  intros H. induction H as [c x C | c cs x y C _ IH]; cbn [fold_right]; [cbn; now constructor | now apply added_is].
Qed.
Lemma greatest_of_is I c x : is_c I c x -> def I (greatest_of c) /\ den I (greatest_of c) = x.
Proof.
  intros [F S]. revert x S. induction F as [| e c D F IH]; intros x S; [discriminate S |].
  destruct c as [| d c]; [change (Some (den I e) = Some x) in S; injection S as <-; now split |].
  change (join (Some (den I e)) (top I (d :: c)) = Some x) in S. destruct (top I (d :: c)) as [y |] eqn:T; [| cbn in T; now destruct (top I c)].
  destruct (IH y eq_refl) as [D' E]. cbn [join] in S. injection S as <-.
  change (greatest_of (e :: d :: c)) with (Fn greater (Cons e (Cons (greatest_of (d :: c)) Nil))).
  split; [repeat split; auto; discriminate |].
  change (larger (den I e) (den I (greatest_of (d :: c))) = larger (den I e) y). now rewrite E.
Qed.
Lemma of_clauses_is I cs x : is_cs I cs x -> is_p I (of_clauses cs) x.
Proof.
  intros H. assert (General : is_p I (opposite (atom (greatest_of
    (fold_right placed_in [] (map (fun c => literal false (greatest_of c)) cs))))) x).
  { replace x with (opp (opp x)) by ring. apply opposite_is.
    assert (G : is_c I (fold_right placed_in [] (map (fun c => literal false (greatest_of c)) cs)) (opp x)).
    { induction H as [c x C | c cs x y C _ IH]; cbn [map fold_right]; destruct (greatest_of_is I c x C) as [D E];
        destruct (literal_is I false _ D) as [L E']; rewrite E in E'; cbn [sign] in E'.
      - cbn [placed_in]. split; [auto | cbn; now rewrite E'].
      - destruct IH as [F S]. destruct (placed_in_is I _ _ L F) as [F' S']. split; [exact F' |].
        rewrite S', S, E'. cbn. unfold smaller. now rewrite opp_opp. }
    destruct (greatest_of_is I _ _ G) as [D E]. rewrite <- E. now apply atom_is. }
  unfold of_clauses. destruct cs as [| c [| d cs]]; [exact General | | destruct c as [| [] [| e c]]; exact General].
  clear General. inversion H as [c' x' C | ? ? ? ? ? N]; subst; [| inversion N]. destruct (greatest_of_is I c x C) as [D E].
  assert (Plain : is_p I (atom (greatest_of c)) x) by (rewrite <- E; now apply atom_is).
  destruct c as [| e [| d c]]; try exact Plain; destruct e; try exact Plain.
  destruct C as [_ S]. cbn in S. injection S as <-. apply number_is.
Qed.
Lemma only_cs I e x : is_cs I [[e]] x -> den I e = x.
Proof.
  intros H. inversion H as [c' x' [_ S] | ? ? ? ? ? N]; [| inversion N]. cbn in S. now injection S.
Qed.
Lemma pgreater_is I p q x y : is_p I p x -> is_p I q y -> is_p I (pgreater p q) (fn greater [x; y]).
Proof.
  intros P Q. unfold pgreater. destruct (Nat.leb _ _); [apply held_is; [auto | exact Logic.I] |].
  destruct (reify_is In I p x P) as [Dp Ep], (reify_is In I q y Q) as [Dq Eq].
  pose proof (all_added_is I _ _ (product_cs I _ _ _ _ (clauses_is I _ Dp true) (clauses_is I _ Dq true))) as H.
  cbn [sign] in H. rewrite Ep, Eq in H. change (fn greater [x; y]) with (larger x y).
  pose proof (all_added_is I _ _ (app_cs I _ _ _ _ (clauses_is I _ Dp false) (clauses_is I _ Dq false))) as K.
  cbn [sign] in K. rewrite Ep, Eq in K. apply of_clauses_is, opposite_is in K.
  replace (opp (smaller (opp x) (opp y))) with (larger x y) in K by (unfold smaller; now rewrite !opp_opp).
  assert (Two : forall cs, is_cs I cs (larger x y) -> is_p I (let a := of_clauses cs in
    let b := of_clauses (fold_right added [] (clauses false (reify p) ++ clauses false (reify q))) in
    match cmp (reify a) (reify b) with Gt => opposite b | _ => a end) (larger x y)).
  { intros cs C. apply of_clauses_is in C. cbv zeta. destruct (cmp _ _); [exact C | exact C | exact K]. }
  destruct (fold_right added [] (flat_map _ _)) as [| [| e [| d c]] [| c' cs]]; try (now apply Two).
  destruct (same e (reify p)) eqn:E; [| destruct (same e (reify q)) eqn:E'; [| now apply of_clauses_is]].
  - apply same_eq in E as ->. rewrite <- (only_cs I _ _ H), Ep. exact P.
  - apply same_eq in E' as ->. rewrite <- (only_cs I _ _ H), Eq. exact Q.
Qed.

(** *** All functions *)
Lemma direct_is I f ps xs : f <> log -> Forall2 (is_p I) ps xs -> is_p I (direct f ps) (fn f xs).
Proof.
  intros N H. assert (Held : is_p I (held f ps) (fn f xs)).
  { apply held_is; [exact H |]. destruct xs as [| x [| y xs]]; cbn; auto. contradiction. }
  destruct H as [| p x ps xs P [| q y ps' xs' Q [| r z ps'' xs'' R]]]; cbn [direct]; try exact Held.
  - destruct (Z.eqb_spec f 0) as [-> |]; [now apply is_above_is |].
    destruct (Z.eqb_spec f 1) as [-> |]; [now apply is_nothing_is |].
    destruct (odd f || symmetric f) eqn:S; [now apply signed_is | exact Held].
  - destruct (Z.eqb_spec f greater) as [-> |]; [now apply pgreater_is | exact Held].
Qed.
Lemma each_case_is I (f : list poly -> poly) (g : list A -> A) :
  (forall ps xs, Forall2 (is_p I) ps xs -> is_p I (f ps) (g xs)) ->
  forall ps xs before ys, Forall2 (is_p I) before ys -> Forall2 (is_p I) ps xs ->
  is_p I (each_case f before ps) (g (ys ++ xs)).
Proof.
  intros H. induction ps as [| p ps IH]; intros xs before ys B P; inversion P as [| p' x ps' xs' Px Ps]; subst; cbn [each_case].
  - rewrite app_nil_r. now apply H.
  - apply (by_cases_is I _ (fun x => g (ys ++ x :: xs'))); [| exact Px]. clear p x Px P. intros p x Px.
    replace (ys ++ x :: xs') with ((ys ++ [x]) ++ xs') by now rewrite <- app_assoc.
    apply IH; [| exact Ps]. now apply Forall2_app; [| constructor].
Qed.
Lemma function_is I f ps xs : defined f xs -> Forall2 (is_p I) ps xs -> is_p I (function f ps) (fn f xs).
Proof.
  intros D H. unfold function. destruct (Z.eqb_spec f log) as [-> | N].
  - destruct H as [| p x ps xs P [| q y ps' xs' Q H]]; [apply held_is; auto | | apply held_is; auto].
    apply plog_is; [exact P | now apply D].
  - apply (each_case_is I (direct f) (fn f)) with (before := []) (ys := []); auto.
    intros. now apply direct_is.
Qed.
End Denotation.
